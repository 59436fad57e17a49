// pages.mjs BINARIES FOLDER [DOCS]: run.sh says what it does.
import assert from 'node:assert/strict';
import { renameSync, writeFileSync } from 'node:fs';
import { check, focused, launch, look, open, press, says, text } from './browser.mjs';
import * as fleet from './fleet.mjs';
import { Site, TOKEN, WRITTEN, until } from './site.mjs';

const [binaries, folder, docs] = process.argv.slice(2);
const site = new Site(binaries);
const url = `http://127.0.0.1:${site.admin}/`;
let browser;

async function ready() {
  for (const [program, config] of [['weir-origin', 'origin.toml'], ['weir-edge', 'edge.toml'], ['weir-edge', 'second.toml'], ['weir-agent', 'agent.toml']]) site.start(program, config);
  await until('the agent has told what it runs', async () => (await site.ask('/v1/agents')).agents[0].services === 1);
  check('an origin, two edges and an agent run');
  const page = await open(url);
  await says(page, '#state', /^Ready: it can serve all that it should\.$/);
  await says(page, '#agents', /cluster-1\s+connected\s+1\s+nothing/);
  await look(page, 'edge-ready');
  const [status, agents] = [await site.ask('/status'), await site.ask('/v1/agents')];
  const about = await text(page, '#data');
  for (const shown of [status.origins[0].name, status.services[0].service, agents.agents[0].agent]) assert.ok(about.includes(shown), shown);
  assert.match(await text(page, '#services-words'), new RegExp(`^${status.services_total} service:`));
  check('the page and the API agree');
  return page;
}

async function byKeyboard(page) {
  await page.setViewport({ width: 1280, height: 900 });
  await page.reload();
  await says(page, '#agents', /cluster-1/);
  await press(page, 'Tab');
  assert.equal(await focused(page), 'Skip to the content');
  await press(page, 'Tab');
  assert.equal(await focused(page), 'pause');
  await press(page, 'Space');
  await says(page, '#as-of', /^Paused\. All of this is as of .*, [2-9] s ago\.$/);
  assert.equal(await page.$eval('#pause', (node) => node.getAttribute('aria-pressed')), 'true');
  await press(page, 'Space');
  await says(page, '#as-of', /^As of .*Refreshes every 5 s\.$/);
  for (let n = 0; n < 30 && await focused(page) !== 'The same as a table'; n += 1) await press(page, 'Tab');
  assert.equal(await focused(page), 'The same as a table');
  await press(page, 'Enter');
  assert.match(await text(page, '#requests-plot table'), /Minutes ago\s+All\s+/);
  // A link that has the focus keeps it when its table is drawn again.
  await page.evaluate(() => document.querySelector('#agents tbody').setAttribute('data-before', ''));
  await page.focus('#pause');
  for (let n = 0; n < 30 && await focused(page) !== 'cluster-1'; n += 1) await press(page, 'Tab');
  await page.evaluate(() => { document.querySelector('#agents tbody').append(document.createElement('tr')); });
  await until('the table is drawn again', () => page.$eval('#agents tbody', (body) => !body.hasAttribute('data-before')));
  assert.equal(await focused(page), 'cluster-1');
  await press(page, 'Enter');
  await until('the link is followed', () => page.url().endsWith('/v1/agents/cluster-1'));
  await page.goto(url);
  check('by keyboard alone: skip, pause, a table, a link that keeps the focus');
}

async function nobodyLooks(page) {
  await says(page, '#agents', /cluster-1/);
  const hide = (hidden) => page.evaluate((is) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => is });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  await hide(true);
  const before = page.requests;
  // Longer than between two requests.
  await new Promise((resolve) => setTimeout(resolve, 6000));
  assert.equal(page.requests, before);
  await hide(false);
  await until('it asks again', () => page.requests > before);
  check('a hidden page asks nothing');
}

async function hookFails(page) {
  writeFileSync(site.path('broken'), '');
  site.commit('two');
  await says(page, '#agents', /shop-prod: hook-failed\./);
  assert.ok((await text(page, '#agents')).includes(WRITTEN));
  await says(page, '#agents-words', /1 with a problem/);
  await says(page, '#agents-hint', /^Its agents: 1 agent with a problem$/);
  assert.equal(await page.$('#agents img'), null, 'what a hook writes is text');
  await look(page, 'edge-hook-failed');
  check('a hook fails, and the page says so');
}

async function originIsLost(page) {
  await site.kill('origin.toml');
  await says(page, '#state', /^Needs attention: /);
  await says(page, '#origins', /down/);
  assert.match(await page.title(), /^Needs attention – edge edge-1$/);
  await look(page, 'edge-without-origin');
  check('the edge loses its origin, and the page says so');
}

async function edgeIsLost(page) {
  page.isOutage = true;
  await site.kill('edge.toml');
  await says(page, '#notice', /^No answer from the edge since .*it cannot be reached.*may be wrong by now/);
  await says(page, '#as-of', /^All of this is as of .* ago\.$/);
  assert.match(await page.title(), /^No answer/);
  await look(page, 'edge-lost');
  site.start('weir-edge', 'edge.toml');
  await until('the notice is gone', async () => !(await page.$eval('#notice', (node) => node.checkVisibility())));
  check('the edge is killed, and the page says so, until it is back');
}

async function theOrigin() {
  const page = await open(`http://127.0.0.1:${site.originAdmin}/`);
  await says(page, '#state', /^Ready: it can serve all that it should\.$/);
  const published = (await site.ask('/status', site.originAdmin)).services[0].published;
  await says(page, '#services', new RegExp(`shop-prod\\s+following\\s+${published.commit.slice(0, 12)}\\s+${published.digest.slice(0, 15)}`));
  await says(page, '#members-words', /^This origin is not in a cluster\.$/);
  await look(page, 'origin-ready');
  renameSync(site.path('upstream'), site.path('away'));
  await says(page, '#state', /^Needs attention: /);
  await says(page, '#repositories', /shop\s+unhealthy/);
  await look(page, 'origin-without-upstream');
  renameSync(site.path('away'), site.path('upstream'));
  await says(page, '#state', /^Ready: /);
  check('an upstream is away, and the page of the origin says so, until it is back');
  return page;
}

async function signIn() {
  const page = await open(`http://127.0.0.1:${site.secondAdmin}/`);
  page.isOutage = true;
  await page.waitForSelector('#sign-in:not([hidden])');
  assert.equal(await page.$eval('#data', (node) => node.checkVisibility()), false, 'nothing is shown before');
  await look(page, 'edge-sign-in');
  // From the beginning of the document to the field.
  const type = async (token) => {
    for (let n = 0; n < 9 && await focused(page) !== 'token'; n += 1) await press(page, 'Tab');
    await page.keyboard.type(token);
    await press(page, 'Enter');
  };
  await type('another-operators-token');
  await says(page, '#notice', /^The token is wrong\.$/);
  await type(TOKEN);
  await says(page, '#state', /attention|Ready/);
  assert.equal(await focused(page), 'main');
  await page.click('footer a[href="/v1/agents"]');
  await says(page, '#linked', /"agents":/);
  assert.equal(page.url(), `http://127.0.0.1:${site.secondAdmin}/`, 'a link that needs the token stays on the page');
  const stored = await page.evaluate(() => [document.cookie, localStorage.length, sessionStorage.length, location.href]);
  assert.deepEqual(stored, ['', 0, 0, `http://127.0.0.1:${site.secondAdmin}/`], 'the token is in memory alone');
  await page.reload();
  await page.waitForSelector('#sign-in:not([hidden])');
  check('a token opens the data, and is forgotten with the page');
  return page;
}

try {
  browser = await launch(folder, docs);
  const page = await ready();
  await byKeyboard(page);
  await nobodyLooks(page);
  await hookFails(page);
  const others = [await signIn(), await theOrigin()];
  const fleets = await fleet.aFailingAgent(site);
  others.push(fleets, await fleet.filters(site, fleets));
  await fleet.aService(site, fleets);
  await fleet.aPlan(site, fleets);
  await page.goto('about:blank');
  await fleet.anEdgeIsLost(site, fleets);
  await page.goto(url);
  for (const one of others) await one.goto('about:blank');
  await originIsLost(page);
  await edgeIsLost(page);
  assert.deepEqual([page, ...others].flatMap((one) => one.unexpected), []);
  check('no message on the console, no error, no request to another host');
} catch (error) {
  console.error(`FAIL ${error.stack}\n${site.logs()}`);
  process.exitCode = 1;
} finally {
  await browser?.close();
  await site.end();
}
