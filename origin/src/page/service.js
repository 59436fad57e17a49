// One service: what is published, staged and on disk, its history, and what an operator may do with it.

const HISTORY = 50;
const ARRIVAL_COLUMNS = 60;
const DIFF_LINES = 400;
// As the API has it; the field counts characters.
const MAX_REASON_BYTES = 256;

const pathOf = (name) => `/v1/services/${encodeURIComponent(name)}`;
const dateOf = (time) => `${new Date(time).toISOString().slice(0, 16).replace('T', ' ')} UTC`;
const byWhom = ({ by, reason }) => [by, reason].filter(Boolean).join(': ') || '–';

async function loadService(get, name) {
  const fleet = (kind, all) => get(`/v1/fleet/${kind}${query([['service', name], ...all])}`);
  const [document, history, rollout, groups, arrivals, worst] = await Promise.all([
    get(pathOf(name)), get(`${pathOf(name)}/history?limit=${HISTORY}`), get(`${pathOf(name)}/rollout`),
    fleet('summary', [['by', 'revision'], ['limit', GROUPS]]),
    // In this phase no hook is to be done: what was applied last is what is on disk.
    fleet('summary', [['by', 'revision,since:1'], ['phase', 'current'], ['limit', GROUPS]]),
    fleet('rows', [['problem', 'any'], ['limit', LISTED]]),
  ]);
  return { now: groups.as_of, answer: groups, groups, service: { name, document, history, rollout, arrivals }, worst };
}

const button = (words, value, about) => make('button', { type: 'button', value, ...(about ? { 'aria-label': `${words} ${about}` } : {}) }, words);

function showServiceState({ name, document, rollout }, who, now) {
  const { status } = document;
  const { published, pinned, frozen, failure, seen } = status || {};
  const words = [
    published ? `${cut(called(published))} is published, since ${dateOf(published.published_at)}.` : 'Nothing is published yet.',
    pinned ? `It is pinned by ${pinned.by || 'an operator'}, for ${duration(secondsSince(pinned.since, now))}${pinned.reason ? `: ${pinned.reason}` : ''}.` : '',
    frozen ? `Nothing new is published: it is frozen${frozen.name ? ` by ${frozen.name}` : ''}${frozen.until ? ` until ${dateOf(frozen.until)}` : ''}${frozen.reason ? `: ${frozen.reason}` : ''}.` : '',
  ].filter(Boolean).join(' ');
  const since = failure && (failure.since || seen?.upstream_unreachable_since);
  say('service-stopped', failure ? `It ${cannotFollow(status)}${since ? `, since ${dateOf(since)}` : ''}.${published && failure.step !== 'store' ? ' What is published stays.' : ''}` : '', 'bad');
  say('service-name', `Service ${name}`);
  say('service-state', words, pinned || frozen ? 'warn' : '');
  say('service-source', [['repository', document.repository], ['chart', document.chart], ['ref', document.ref], ['folder', document.folder]]
    .filter(([, value]) => value).map(([word, value]) => `${word} ${value}`).join(', '));
  const may = who.role !== 'view';
  const actions = rollout.actions ?? { none: [], aborted: ['promote'] }[rollout.state] ?? ['promote', 'abort'];
  setButtons('service-actions', may && [...(!published ? [] : pinned ? [button('Unpin', 'unpin')] : [button('Pin', 'pin')]), button('Refresh', 'refresh')]);
  setButtons('rollout-actions', may && actions.map((action) => button(action[0].toUpperCase() + action.slice(1), `rollout ${action}`)));
}
// Buttons that stay the same keep the focus.
function setButtons(id, all) {
  const wanted = make('p', { id }, ...(all || []).flatMap((one) => [one, ' ']));
  if (!byId(id).isEqualNode(wanted)) byId(id).replaceWith(wanted);
}

function showRollout(rollout, now) {
  const { to: staged, from, state, since, percent, plan, stage, stages, waits_for: waitsFor, agents } = rollout;
  const selectors = (rollout.for || []).map((one) => [one.agents && `named ${one.agents}`, one.labels && Object.entries(one.labels).map((label) => label.join('=')).join(' and ')]
    .filter(Boolean).join(' with ') || JSON.stringify(one));
  const audience = [...selectors, ...(percent ? [`${percent} % of all agents`] : [])].join(', ');
  say('rollout-words', !staged ? 'Nothing is staged.' : [
    `${state === 'running' ? 'Staged' : state[0].toUpperCase() + state.slice(1)}${since ? ` since ${dateOf(since)}` : ''}${rollout.by ? `, by ${byWhom(rollout)}` : ''}.`,
    plan ? `By the plan ${plan.name || plan}${stage !== undefined && stage !== null ? `, in the stage ${stage.name || stage}` : ''}.` : '',
    audience ? `Agents that get it: ${audience}.` : '', waitsFor ? `${['stopped', 'aborted'].includes(state) ? 'Why' : 'It waits for'}: ${typeof waitsFor === 'string' ? waitsFor : JSON.stringify(waitsFor)}.` : '',
  ].filter(Boolean).join(' '), ['stopped', 'aborted'].includes(state) ? 'bad' : ['waiting', 'paused'].includes(state) ? 'warn' : '');
  byId('rollout-versions').replaceChildren(...(staged ? [named(staged), ' over ', named(from), ' ', button('Compare', `diff ${from.digest} ${staged.digest}`)] : []));
  const number = (value) => ({ number: value === undefined || value === null ? '–' : whole.format(value) });
  byId('stages').hidden = !stages?.length;
  tableRows('stages', (stages || []).map((one, at) => [one.name || (stages.length > 1 ? `${at + 1}` : 'all that get it'), one.state || (one.name && one.name === stage ? 'in progress' : '–'),
    ...['expected', 'done', 'failed', 'silent'].map((name) => number(one[name]))]));
  byId('staged-agents').hidden = !agents?.length;
  tableRows('staged-agents', (agents || []).map((one) => [to([['agent', one.agent]], one.agent), make('span', { class: 'bad' }, one.problem), one.text]));
}

// How many agents had applied what is published, by minutes after its publication.
function showArrival({ document, arrivals }, groups, now) {
  const published = document.status?.published;
  byId('arrival').hidden = !published || groups.total === 0;
  if (byId('arrival').hidden) return;
  const begun = Date.parse(published.published_at);
  const mine = arrivals.groups.filter(({ key: [revision, at] }) => revision === published.revision_id && at)
    .map(({ key: [, at], agents }) => ({ minutes: Math.floor((Date.parse(at) + 59999 - begun) / 60000), agents }));
  const before = sum(mine.filter(({ minutes }) => minutes < 0).map(({ agents }) => agents));
  const after = mine.filter(({ minutes }) => minutes >= 0).sort((one, other) => one.minutes - other.minutes);
  const have = before + sum(after.map(({ agents }) => agents));
  const reached = (part) => {
    let got = before;
    return after.find(({ agents }) => { got += agents; return got >= part * have; })?.minutes ?? 0;
  };
  // As wide as nearly all need, so that one that came a day later does not hide the others.
  const unit = [1, 2, 5, 10, 30, 60, 360, 1440].find((minutes) => reached(0.95) < minutes * ARRIVAL_COLUMNS) || 10080;
  const columns = Array.from({ length: ARRIVAL_COLUMNS }, (_, at) => before + sum(after.filter(({ minutes }) => minutes < (at + 1) * unit).map(({ agents }) => agents)));
  const elapsed = (now - begun) / 60000 / unit;
  const drawn = Math.max(0, Math.ceil(elapsed + 1));
  const minutesOf = (minutes) => minutes < 1 ? 'a minute' : duration((minutes + 1) * 60);
  const parts = [[0.5, 'half'], [0.95, '95 %'], [1, 'all']].map(([part, word]) => [reached(part), word]);
  const times = parts.filter(([minutes], at) => minutes !== parts[at + 1]?.[0]).map(([minutes, word]) => `${word} within ${minutesOf(minutes)}`).join(', ');
  const words = `${arrivals.cursor ? 'At least ' : ''}${whole.format(have)} of ${count(groups.total, 'agent')} ${groups.total === 1 ? 'has' : 'have'} applied it${have > 0 ? `; of these ${times} after its publication` : ''}.` +
    (have > 0 && drawn < ARRIVAL_COLUMNS ? ' What is blank in the plot is still to come.' : '') +
    (before > 0 ? ` ${whole.format(before)} had it before, or their clock is behind.` : '') + (arrivals.cursor ? ' Times that few agents have are left out.' : '');
  say('arrival-words', words);
  byId('arrival-plot').hidden = have === 0;
  const width = 100 / ARRIVAL_COLUMNS;
  byId('arrival-plot').replaceChildren(
    make('div', { class: 'axis', 'aria-hidden': 'true' }, make('span', {}, `all ${whole.format(groups.total)}`)),
    draw('svg', { class: 'plot', viewBox: '0 0 100 100', preserveAspectRatio: 'none', role: 'img', 'aria-labelledby': 'arrival-title arrival-words' },
      draw('title', { id: 'arrival-title' }, 'Agents that have applied what is published, over time'),
      ...columns.map((number, at) => at >= drawn ? null : draw('rect', { class: 'c1', x: at * width, width: width * 0.85, y: 100 - (100 * number) / groups.total, height: (100 * number) / groups.total },
        draw('title', {}, `within ${duration((at + 1) * unit * 60)}: ${whole.format(number)}`))),
      drawn < ARRIVAL_COLUMNS ? draw('rect', { class: 'before', x: drawn * width, width: 100 - drawn * width, height: 100 }) : null),
    make('div', { class: 'axis', 'aria-hidden': 'true' }, ...['published', `${duration((ARRIVAL_COLUMNS / 2) * unit * 60)} later`, `${duration(ARRIVAL_COLUMNS * unit * 60)} later`].map((at) => make('span', {}, at))));
}

function showHistory({ history: { publications, next_page: next } }, who) {
  const current = publications.find((one) => one.current);
  say('history-words', publications.length === 0 ? 'Nothing was published yet.' : next ? `The newest ${publications.length} publications; weir history has all.` : count(publications.length, 'publication') + '.');
  byId('history').hidden = publications.length === 0;
  tableRows('history', publications.map((one) => [dateOf(one.published_at), named(one), short(one.digest), one.why, byWhom(one),
    one.current ? (one.pinned_at && !one.unpinned_at ? 'current, pinned' : 'current') : one.retained ? 'retained' : 'gone',
    !one.retained || !current || one.digest === current.digest ? '–' : make('span', {},
      button('Compare', `diff ${one.digest} ${current.digest}`, `${cut(called(one))} with what is published`), ' ',
      who.role === 'view' ? null : button('Roll back', `rollback ${one.digest}`, `to ${cut(called(one))}`))]));
  const acts = publications.flatMap((one) => (one.acts || []).map((act) => ({ ...act, one })));
  byId('acts').hidden = acts.length === 0;
  tableRows('acts', acts.map(({ at, event, by, reason, one }) => [dateOf(at), by || '–', event, named(one), reason || '–']));
}

function showService(data, now) {
  const { service, who, groups, worst } = data;
  showServiceState(service, who, now);
  const all = groups.groups.map(({ key: revision, rows }) => ({ revision, rows }));
  byId('service-spread').replaceChildren(all.length ? spread(service.name, all, service.document.status?.published, false, Boolean(groups.cursor), service.rollout.to, isOld(data)).cell : 'No agent has reported it.');
  const unknown = notKnown(data, now);
  list('service-not-known', [...unknown, ...notShown(data)]);
  showArrival(service, groups, now);
  showRollout(service.rollout, now);
  byId('service-problems').hidden = worst.total === 0;
  tableRows('service-problems', worst.rows.map(({ agent, problem }) => [to([['agent', agent]], agent), make('span', { class: 'bad' }, problem.kind), ago(problem.since, now), problemOf(problem)]));
  say('service-problems-words', worst.total === 0 ? 'No agent reports a problem.' : `${count(worst.total, 'agent')} with a problem.${worst.total > LISTED ? ` The first ${LISTED} are listed.` : ''}`);
  showHistory(service, who);
  document.title = `${unknown.length ? 'Incomplete – ' : ''}${service.name} – fleet at ${location.host}`;
}

// The lines that differ, from the first to the last one, with three lines around them.
function changedLines(before, after) {
  const [one, other] = [before, after].map((text) => text === undefined || text === null ? [] : text.split('\n'));
  let [start, end] = [0, 0];
  while (start < Math.min(one.length, other.length) && one[start] === other[start]) start += 1;
  while (end < Math.min(one.length, other.length) - start && one.at(-1 - end) === other.at(-1 - end)) end += 1;
  const around = one.slice(Math.max(0, start - 3), start).map((line) => ` ${line}`);
  const below = one.slice(one.length - end, one.length - end + 3).map((line) => ` ${line}`);
  const changed = [...one.slice(start, one.length - end).map((line) => `-${line}`), ...other.slice(start, other.length - end).map((line) => `+${line}`)];
  return [...around, ...changed.slice(0, DIFF_LINES), ...(changed.length > DIFF_LINES ? [` … ${changed.length - DIFF_LINES} more lines`] : []), ...below];
}
async function compare(name, from, to) {
  const mine = compared += 1;
  say('diff-words', 'Comparing …', '');
  byId('diff-files').replaceChildren();
  byId('s-diff').hidden = false;
  byId('h-diff').focus();
  try {
    const found = await asking.read(`${pathOf(name)}/diff${query([['from', from], ['to', to], ['texts', ''], ['limit', 1000]])}`);
    if (mine !== compared) return;
    say('diff-words', `${cut(called(found.from))} to ${cut(called(found.to))}: ${whole.format(found.added)} added, ${whole.format(found.removed)} removed, ${whole.format(found.changed)} changed, ${whole.format(found.unchanged)} unchanged.` +
      (found.not_listed > 0 ? ` ${whole.format(found.not_listed)} more are not listed.` : ''));
    byId('diff-files').replaceChildren(...found.differences.map((one) => {
      const word = !one.old ? 'added' : !one.new ? 'removed' : 'changed';
      const differs = one.old && one.new ? ['kind', 'mode', 'target'].filter((key) => one.old[key] !== one.new[key]).map((key) => `${key} ${one.old[key] ?? '–'} to ${one.new[key] ?? '–'}`) : [];
      const why = { binary: 'It is not text.', 'too-large': 'It is too large to be shown.' }[one.no_text] || (one.no_text ? 'It is not shown: the files above fill the answer.' : '');
      const lines = one.no_text ? [] : changedLines(one.old_text, one.new_text);
      return make('details', found.differences.length <= 5 ? { open: '' } : {}, make('summary', {}, `${one.path}: ${[word, ...differs].join(', ')}`),
        why ? make('p', {}, why) : make('pre', { tabindex: '0' }, ...lines.map((line) => make('span', { class: { '-': 'bad', '+': 'good' }[line[0]] || '' }, `${line}\n`))));
    }));
  } catch (error) {
    if (mine === compared) say('diff-words', `They cannot be compared: ${error.message}`, 'bad');
  }
}

function wordsOfRollout(what, name, { to: staged, plan, stage, next_stage: next, waits_for: waitsFor }) {
  const version = cut(called(staged));
  const does = { promote: `${version} of ${name} is published for all agents.`, abort: `Agents that have ${version} of ${name} return to what is published.`,
    approve: `${next ? `The stage ${next} may begin` : 'The plan goes on'} with ${version} of ${name}, which waits for: ${waitsFor}.` }[what] || `${version} of ${name}: ${what}.`;
  return `${does} ${stage ? `It is in the stage ${stage}${plan ? ` of the plan ${plan}` : ''}.` : plan ? `No stage of the plan ${plan} has begun.` : 'It was staged by hand.'}`;
}

// What a button does: its words, and its request. `generation`: nothing is done if somebody else was faster.
function actionOf(value, { name, document, rollout, history }) {
  const [kind, what] = value.split(' ');
  const generation = document.status?.published?.generation;
  const on = (method, path, more) => [method, `${pathOf(name)}/${path}`, { generation, ...more }];
  return {
    pin: () => ['Pin', `${name} stays at what is published, whatever its ref leads to.`, on('PUT', 'pin')],
    unpin: () => ['Unpin', `${name} follows its ref again, at once.`, on('DELETE', 'pin')],
    refresh: () => ['Refresh', `The upstream of the repository ${document.repository} is polled, and failed builds are tried again.`, ['POST', `/v1/repositories/${encodeURIComponent(document.repository)}/refresh`, {}]],
    rollback: () => ['Roll back', `All agents of ${name} get ${cut(called(history.publications.find((one) => one.digest === what)))} (${cut(what)}) again, and the service is pinned to it until somebody unpins it.`, on('POST', 'rollback', { digest: what })],
    // What was staged instead meanwhile has another generation, and is left alone. So is a stage that was not looked at.
    rollout: () => [what[0].toUpperCase() + what.slice(1), wordsOfRollout(what, name, rollout), on('POST', 'rollout', { action: what, generation: rollout.to?.generation, ...(what === 'approve' && rollout.next_stage ? { stage: rollout.next_stage } : {}) })],
  }[kind]();
}

const dialog = byId('confirm');
let shown = null;
let pending = null;
document.addEventListener('click', (event) => {
  const value = event.target.closest?.('#service button[value]')?.value;
  if (!value || !shown?.service) return;
  if (value.startsWith('diff ')) return void compare(shown.service.name, ...value.split(' ').slice(1));
  const [title, words, request] = actionOf(value, shown.service);
  const isForMore = ['rollout promote', 'rollout approve'].includes(value);
  pending = { title, request, name: shown.service.name };
  say('confirm-title', title);
  say('confirm-words', words);
  say('confirm-not-known', isForMore && notKnown(shown, Date.now()).length ? 'Not all is known of its agents: see the top of the page.' : '');
  say('confirm-wrong', '');
  byId('confirm-do').textContent = title;
  byId('confirm-do').disabled = false;
  // A poll has no reason in any log.
  byId('reason').value = '';
  byId('reason').disabled = byId('reason-line').hidden = value === 'refresh';
  dialog.showModal();
});
byId('confirm-form').addEventListener('submit', async (event) => {
  event.preventDefault();
  const mine = pending;
  const { title, name, request: [method, path, body] } = mine;
  // It may have been closed meanwhile, or be that of another action.
  const isOpen = () => dialog.open && pending === mine;
  const reason = byId('reason').value.trim();
  if (new TextEncoder().encode(reason).length > MAX_REASON_BYTES) return say('confirm-wrong', `The reason has more than ${MAX_REASON_BYTES} bytes.`);
  byId('confirm-do').disabled = true;
  try {
    await asking.send(method, path, { ...body, ...(reason ? { reason } : {}) });
    say('done', `${title}: done at ${clock(new Date())} for ${name}.`, 'good');
    asking.again();
    if (!isOpen()) return;
    dialog.close();
    byId('service-name').focus();
  } catch (error) {
    const words = error.status < 500 ? `Nothing was changed: ${error.message}` :
      `It may have been done. Look at the history. ${error.status ? 'The origin said' : 'No answer'}: ${error.message}`;
    if (!(error.status < 500)) asking.again();
    if (!isOpen()) return say('done', `${title} of ${name}: ${words}`, 'bad');
    say('confirm-wrong', words);
    byId('confirm-do').disabled = false;
  }
});
byId('confirm-no').addEventListener('click', () => dialog.close());
