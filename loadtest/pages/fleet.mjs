// The page of the fleet, at the operators' listener of the origin.
import assert from 'node:assert/strict';
import { rmSync } from 'node:fs';
import { check, focused, look, open, press, says, text } from './browser.mjs';
import { ANAS_TOKEN, TOKEN, WRITTEN, until } from './site.mjs';

const address = (site) => `https://127.0.0.1:${site.operator}/`;

// By keyboard alone, from the beginning of the document.
async function tabTo(page, wanted, most = 60) {
  for (let n = 0; n < most && await focused(page) !== wanted; n += 1) await press(page, 'Tab');
  assert.equal(await focused(page), wanted);
}
async function signIn(page, token) {
  await page.waitForSelector('#sign-in:not([hidden])');
  await tabTo(page, 'token');
  await page.keyboard.type(token);
  await press(page, 'Enter');
}
async function filter(page, line) {
  await page.$eval('#filter-line', (input) => { input.value = ''; });
  await page.focus('#filter-line');
  await page.keyboard.type(line);
  await press(page, 'Enter');
}

// A hook fails: the page names it first, and agrees with `weir`.
export async function aFailingAgent(site) {
  const page = await open(address(site));
  // The browser tells of the 401 before the sign-in.
  page.isOutage = true;
  await page.waitForSelector('#sign-in:not([hidden])');
  assert.equal(await page.$eval('#data', (node) => node.checkVisibility()), false, 'nothing is shown before');
  await look(page, 'fleet-sign-in');
  await signIn(page, 'another-operators-token');
  await says(page, '#notice', /^The token is wrong\.$/);
  await signIn(page, TOKEN);
  await says(page, '#state', /^Needs attention: 1 reported problem\.$/);
  assert.equal(await focused(page), 'main');
  page.isOutage = false;
  await says(page, '#about', /^Signed in as token, with the role admin, by a token\.$/);
  await says(page, '#problems', /cluster-1\s+shop-prod\s+hook-failed/);
  assert.ok((await text(page, '#problems')).includes(WRITTEN));
  assert.equal(await page.$('#problems img'), null, 'what a hook writes is text');
  await look(page, 'fleet-problem');
  const [{ rows }, { groups: summary }] = [site.weir('fleet'), site.weir('fleet', '--by', 'revision')];
  assert.match(await text(page, '#agents-words'), new RegExp(`^${site.weir('get', 'agents').agents.length} agent: 1 live\\.$`));
  const revision = rows[0].current.revision_id.split(':').at(-1).slice(0, 12);
  assert.deepEqual([rows.length, summary[0].rows, summary[0].key], [1, 1, rows[0].current.revision_id]);
  await says(page, '#services', new RegExp(`shop-prod\\s+${revision}.*\\s+100 % of 1 agent has the published revision on disk\\. ${revision}: 1`));
  check('the page of the fleet, weir and the API agree on an agent whose hook fails');
  return page;
}

export async function filters(site, page) {
  // The browser tells of the 400, too.
  page.isOutage = true;
  await filter(page, 'problem=none');
  await says(page, '#wrong', /`problem` is one of/);
  await filter(page, 'colour=red');
  await says(page, '#wrong', /^There is no filter `colour`\./);
  await filter(page, 'service=nothing-*');
  await says(page, '#state', /^Nothing matches the filter\.$/);
  await says(page, '#h-agents', /^Agents of all services$/);
  await filter(page, 'agent=cluster-* problem=hook-failed');
  await says(page, '#rows', /cluster-1\s+shop-prod\s+live/);
  assert.equal(page.url(), `${address(site)}?agent=cluster-*&problem=hook-failed`);
  page.isOutage = false;
  assert.equal(await focused(page), 'filter-line');
  await look(page, 'fleet-filtered');
  const stored = await page.evaluate(() => [document.cookie, localStorage.length, sessionStorage.length]);
  assert.deepEqual(stored, ['', 0, 0], 'the token is in memory alone');
  // A colleague gets the same question, and no token.
  const [url, other] = [page.url(), await open(address(site))];
  other.isOutage = true;
  await other.goto(url);
  await signIn(other, ANAS_TOKEN);
  await says(other, '#rows', /cluster-1\s+shop-prod\s+live/);
  await says(other, '#about', /^Signed in as ana, with the role view, by a token\. You see the services shop-\*/);
  assert.equal(await other.$eval('#s-edges', (node) => node.checkVisibility()), false);
  await filter(page, 'label=ring=canary');
  await says(page, '#state', /^No agent matches the filter\.$/);
  await filter(page, 'state=live');
  await says(page, '#agents', /cluster-1\s+live/);
  await page.goBack();
  await page.goBack();
  await says(page, '#rows', /cluster-1/);
  assert.equal(await page.$eval('#filter-line', (input) => input.value), 'agent=cluster-* problem=hook-failed');
  check('filters are those of the API, the address has them, and back goes back');
  return other;
}

// The dialog, with a reason, by keyboard alone.
async function confirm(page, reason) {
  await page.waitForSelector('#confirm[open]');
  assert.equal(await focused(page), 'reason');
  await page.keyboard.type(reason);
  await press(page, 'Enter');
}

// What an operator does with a service: compare, roll back, unpin, promote.
export async function aService(site, page) {
  rmSync(site.path('broken'));
  await page.goto(address(site));
  page.isOutage = true;
  await signIn(page, TOKEN);
  await page.waitForSelector('#services a');
  page.isOutage = false;
  await page.click('#services a');
  await says(page, '#service-name', /^Service shop-prod$/);
  assert.equal(page.url(), `${address(site)}?show=shop-prod`);
  await says(page, '#arrival-words', /^1 of 1 agent has applied it; of these all within /);
  await says(page, '#history-words', /^2 publications\.$/);
  await look(page, 'fleet-service');

  await page.setViewport({ width: 1280, height: 900 });
  await page.focus('#service-name');
  await tabTo(page, 'Compare');
  await press(page, 'Enter');
  await says(page, '#diff-words', /0 added, 0 removed, 1 changed, 0 unchanged\.$/);
  assert.match(await text(page, '#diff-files'), /file: changed\s+-one\s+\+two/);
  const [newest, former] = (await site.operators('/v1/services/shop-prod/history')).publications;
  await page.focus('#service-name');
  await tabTo(page, 'Roll back');
  await press(page, 'Enter');
  await page.waitForSelector('#confirm[open]');
  await look(page, 'fleet-confirm');
  await press(page, 'Escape');
  assert.equal((await site.operators('/v1/services/shop-prod')).status.published.digest, newest.digest, 'nothing was done');
  await tabTo(page, 'Roll back');
  await press(page, 'Enter');
  await confirm(page, 'INC-42');
  await says(page, '#done', /^Roll back: done at /);
  await says(page, '#service-state', /is published.*pinned by token.*: INC-42\./);
  const { publications } = site.weir('history', 'shop-prod');
  assert.deepEqual([publications[0].digest, publications[0].by, publications[0].reason], [former.digest, 'token', 'INC-42']);
  await says(page, '#history', new RegExp(`${former.digest.slice(0, 15)}\\s+rolled-back\\s+token: INC-42\\s+current, pinned`));
  await tabTo(page, 'Unpin');
  await press(page, 'Enter');
  await confirm(page, 'mended');
  await says(page, '#service-state', /^[0-9a-f]{12} is published, since [^.]*\.$/);
  check('a difference, a rollback and an unpin by keyboard, each confirmed with a reason; weir and the API agree');

  // On a branch of its own: the service follows the HEAD of the repository.
  site.git('-C', site.path('upstream'), 'worktree', 'add', '--quiet', '-b', 'next', site.path('next'));
  const commit = site.commit('three', 'next');
  await until('it is staged', async () => (await site.operators('/v1/services/shop-prod/stage', { revision: commit, for: [{ agents: 'cluster-*' }], reason: 'CHG-7' })).state === 'running');
  await says(page, '#rollout-words', /^Staged since .* UTC, by token: CHG-7\. Agents that get it: named cluster-\*\.$/);
  await says(page, '#stages', /all that get it.*\s1\s+1\s+0\s+0/);
  await says(page, '#service-spread', new RegExp(`${commit.slice(0, 12)} \\(staged\\): 1`));
  await look(page, 'fleet-staged');
  await page.setViewport({ width: 1280, height: 900 });
  await page.focus('#service-name');
  await tabTo(page, 'Promote');
  await press(page, 'Enter');
  await says(page, '#confirm-words', new RegExp(`^${commit.slice(0, 12)} of shop-prod is published for all agents\\. It was staged by hand\\.$`));
  await confirm(page, 'CHG-7 is well');
  await says(page, '#service-state', new RegExp(`^${commit.slice(0, 12)} is published`));
  await says(page, '#rollout-words', /^Nothing is staged\.$/);
  await says(page, '#acts', /token\s+promoted\s+\w+\s+CHG-7 is well/);
  // By a plan, in a state that this version does not know, with what may be done about it.
  await page.evaluate(() => {
    const version = { digest: 'b3-1', revision_id: 'sha1:1', generation: 1 };
    const rollout = { to: version, from: version, plan: 'careful', stage: 'canary', state: 'waiting', waits_for: 'an approval', actions: ['approve', 'abort'],
      stages: [{ name: 'canary', expected: 3, done: 3, failed: 0, silent: 0 }, { name: 'all' }] };
    showRollout(rollout, Date.now());
    showServiceState({ name: 'shop-prod', document: { status: null }, rollout }, { role: 'deliver' }, Date.now());
  });
  assert.equal(await text(page, '#rollout-words'), 'Waiting. By the plan careful, in the stage canary. It waits for: an approval.');
  assert.match(await text(page, '#stages'), /canary\s+in progress\s+3\s+3\s+0\s+0\s+all\s+–\s+–\s+–\s+–\s+–/);
  assert.equal((await text(page, '#rollout-actions')).trim(), 'Approve Abort');
  check('what is staged is seen and promoted; stages and actions of a plan are shown');
}

// What a plan stages is approved.
export async function aPlan(site, page) {
  await says(page, '#service-actions', /Unpin/);
  await page.focus('#service-name');
  await tabTo(page, 'Unpin');
  await press(page, 'Enter');
  await confirm(page, 'by a plan from now on');
  await says(page, '#done', /^Unpin: done at /);
  site.rollOutByPlan();
  await until('the plan is used', async () => (await site.operators('/v1/services/shop-prod')).rollout === 'careful');
  const commit = site.commit('four');
  await says(page, '#rollout-words', /^Waiting.* By the plan careful.* It waits for: .*approv/);
  await look(page, 'fleet-plan');
  await page.setViewport({ width: 1280, height: 900 });
  await page.focus('#service-name');
  await tabTo(page, 'Approve');
  await press(page, 'Enter');
  await confirm(page, 'CHG-8');
  await says(page, '#service-state', new RegExp(`^${commit.slice(0, 12)} is published`));
  await says(page, '#acts', /approved.*CHG-8/);
  check('a rollout by a plan waits, is approved, and is published');
}

// An edge is killed: its agents are not just fewer.
export async function anEdgeIsLost(site, page) {
  await page.click('#back');
  await says(page, '#state', /^Well: 1 agent, all live, none with a problem\.$/);
  await look(page, 'fleet-well');
  await site.kill('edge.toml');
  await says(page, '#not-known', /^Not known: what agents of the edge edge-1 run\./);
  await says(page, '#state', /not all is known/);
  assert.match(await page.title(), /^Incomplete – fleet at /);
  await look(page, 'fleet-without-an-edge');
  site.start('weir-edge', 'edge.toml');
  await says(page, '#state', /^Well: /);
  await page.click('#sign-out');
  await says(page, '#notice', /^You are signed out\.$/);
  assert.deepEqual([await focused(page), await page.$eval('#data', (node) => node.checkVisibility()), await page.$eval('#about', (node) => node.textContent)], ['token', false, '']);
  check('an edge is killed, and the page of the fleet says what is not known, until it is back; nothing stays after a sign-out');
}
