// The page of the fleet: what agents run, by the operators' API alone.

const OF_AGENTS = ['agent', 'label', 'edge', 'problem'];
const OF_ROWS_ALONE = ['service', 'repository', 'lacks', 'lacks_by', 'phase'];
const [LISTED, MATCHES, GROUPS, PUBLISHED, SHOWN] = [25, 50, 1000, 250, 100];
const REVISION_COLOURS = ['c2', 'c3', 'c4', 'c8'];

const decoded = (text) => { try { return decodeURIComponent(text); } catch { return text; } };
const encoded = (text) => encodeURIComponent(text).replace(/%(2C|2F|3A|3D)/g, decodeURIComponent);
// `key=value` each. Not by URLSearchParams, for which `+` is a space: versions have it.
const pairs = (text) => text.split(/[\s&]+/).filter(Boolean).map((pair) => {
  const [key, ...value] = pair.split('=');
  return [decoded(key), decoded(value.join('='))];
});
const query = (all) => `?${all.map(([key, value]) => `${encoded(key)}=${encoded(value)}`).join('&')}`;
const lineOf = (all) => all.map(([key, value]) => `${key}=${value.replace(/[\s&%]/g, encodeURIComponent)}`).join(' ');

// What is looked at, from the address: what the filter matches, or one service. `cursor`: of the page of matches.
let view;
// How often a difference was asked for, or left: a late answer is of none.
let compared = 0;
function look() {
  const all = pairs(location.search.slice(1));
  view = { at: location.search, filter: all.filter(([key]) => key !== 'show'), service: new Map(all).get('show'), cursor: null };
}

const toService = (name) => to([...view.filter, ['show', name]], name);
const to = (all, content) => make('a', { href: query(all) }, content);
// Digits without their kind (`sha1:…`), and only the first of them; versions are whole.
const cut = (id) => /^(\w+:|b3-)?[0-9a-f]{40,}$/.test(id) ? id.replace(/^\w+:/, '').slice(0, id.startsWith('b3-') ? 15 : 12) : id;
const short = (id) => make('span', { class: 'key', title: id }, cut(id));
const called = (release) => release.version || release.commit || release.revision_id || release.digest;
const named = (release) => release ? short(called(release)) : 'nothing yet';
const ago = (time, now) => time ? `${duration(secondsSince(time, now))} ago` : '–';
const stateOf = (state) => make('span', { class: `state ${{ live: '', silent: 'bad', refused: 'bad', incomplete: 'bad' }[state] ?? 'warn'}` }, state);

async function load(get) {
  const who = await get('/v1/whoami');
  const { filter, cursor } = view;
  const other = filter.find(([key]) => ![...OF_AGENTS, ...OF_ROWS_ALONE, 'state'].includes(key));
  if (other) return { who, wrong: `There is no filter \`${other[0]}\`. Filters are ${[...OF_ROWS_ALONE, ...OF_AGENTS, 'state'].join(', ')}.` };
  try {
    if (view.service) return { who, ...await loadService(get, view.service) };
    const isOfAgents = filter.some(([key]) => key === 'state');
    return { who, ...(isOfAgents ? await loadAgents(get, filter, cursor) : await loadRows(get, filter, cursor)),
      // Who is limited to some services may not read them; each answer names those that are incomplete.
      edges: who.services ? null : (await get('/v1/edges')).edges };
  } catch (error) {
    // What the API has against the filter, or the name of the service.
    if ([400, 404, 409].includes(error.status)) return { who, wrong: error.message };
    throw error;
  }
}
const page = (cursor) => [['limit', MATCHES], ...(cursor ? [['cursor', cursor]] : [])];
async function loadAgents(get, filter, cursor) {
  const listed = await get(`/v1/fleet/agents${query([...filter, ...page(cursor)])}`);
  return { now: listed.as_of, answer: listed, agents: { listed: listed.agents } };
}
// At most ten questions, of which the origin answers two at a time. The first one says what is wrong with the filter.
async function loadRows(get, filter, cursor) {
  const fleet = (kind, ...more) => get(`/v1/fleet/${kind}${query(more.flat())}`);
  const ofAgents = filter.filter(([key]) => OF_AGENTS.includes(key));
  const agents = (state, limit) => fleet('agents', ofAgents, state ? [['state', state]] : [], [['limit', limit]]);
  const isOf = (key) => filter.some(([name]) => name === key);
  const failing = [...filter, ...(isOf('problem') ? [] : [['problem', 'any']])];
  const exact = (key) => filter.filter(([name, value]) => name === key && !value.includes('*')).map(([, value]) => value)[0];
  const groups = await fleet('summary', filter, [['by', 'service,revision'], ['limit', GROUPS]]);
  const published = exact('service') ? get(`/v1/services/${encodeURIComponent(exact('service'))}`)
    .then((one) => ({ services: [one] }), (error) => { if (error.status === 404) return { services: [] }; throw error; }) :
    get(`/v1/services${query([...(exact('repository') ? [['repository', exact('repository')]] : []), ['limit', PUBLISHED]])}`);
  const [problems, worst, matches, all, live, silent, refused, services] = await Promise.all([
    fleet('summary', failing, [['by', 'service,problem'], ['limit', GROUPS]]),
    isOf('problem') ? null : fleet('rows', failing, [['limit', LISTED]]),
    filter.length ? fleet('rows', filter, page(cursor)) : null,
    agents(null, 1), agents('live', 1), agents('silent', LISTED), agents('refused', LISTED), published,
  ]);
  return { now: groups.as_of, answer: groups, groups, problems, worst, matches, services,
    agents: { all: all.total, live: live.total, silent: silent.total, refused: refused.total, listed: [...refused.agents, ...silent.agents] } };
}

// What an answer does not know, as `weir` says it. Agents that are gone for a day are not waited for.
function notKnown({ answer }, now) {
  const without = answer.agents_without_rows - answer.agents_without_rows_gone;
  const unknown = answer.unknown - answer.unknown_gone - answer.unknown_pinned;
  return [
    ...answer.incomplete.map(({ edge, via, since }) => `Not known: what agents of the edge ${edge}${via ? ` (through ${via})` : ''} run. It has not reported all for ${duration(secondsSince(since, now))}: it may be down.`),
    ...(unknown > 0 ? [`Not known: whether ${count(unknown, 'more row')} lack the revision. It is not in the history, or their agents do not report what they applied.`] : []),
    ...(without > 0 ? [`Not known: what ${count(without, 'agent')} run. No edge has heard them since the origin started.`] : []),
    ...(answer.pinned || []).map(({ service, pinned, published }) => `Pinned: ${service}, by ${pinned.by || 'an operator'}${pinned.reason ? ` (${pinned.reason})` : ''}, at ${published ? cut(called(published)) : 'a version'} that is not known to have the revision.`),
  ];
}

// What the origin knows and this page leaves out.
function notShown({ groups, services }) {
  const elsewhere = services?.services.filter((one) => one.status?.condition === 'elsewhere').length;
  const smaller = groups?.cursor ? groups.total - sum(groups.groups.map((group) => group.rows)) : 0;
  return [
    ...(smaller > 0 ? [`Not shown: ${count(smaller, 'row')} of revisions that few agents have. Filter by service.`] : []),
    ...(services?.next_page ? [`Not compared: what is published of services after the first ${PUBLISHED}, and whether they can follow. Filter by service or repository.`] : []),
    ...(elsewhere > 0 ? [`Not shown: whether ${count(elsewhere, 'service')} of other origins can follow. Their pages show it.`] : []),
  ].map((words) => make('span', { class: 'quiet' }, words));
}

// Agents have no service: by such a filter it is what agents run that matches.
const isOfRows = () => view.filter.some(([key]) => OF_ROWS_ALONE.includes(key));

// Whether not all agents are heard now.
const isOld = ({ answer, agents }) => answer.incomplete.length > 0 || agents?.silent > 0;

// What stops a service that agents cannot know of: at the origin.
const cannotFollow = (status) => status?.failure ? `cannot follow: ${status.failure.repository ? `repository ${status.failure.repository}: ` : ''}${status.failure.step}: ${status.failure.reason}` : '';

function showFleetState({ answer, agents, groups, problems, services }, unknown, left) {
  const rows = problems?.total ?? 0;
  const byRows = isOfRows() && groups !== undefined;
  const matching = new Set(view.filter.length ? groups?.groups.map((group) => group.key[0]) : services?.services.map((one) => one.name));
  const lost = services?.services.filter((one) => one.status?.failure && matching.has(one.name)).length;
  const wrong = [
    !byRows && agents.refused > 0 && `${count(agents.refused, 'agent')} refused`, !byRows && agents.silent > 0 && `${count(agents.silent, 'agent')} silent`,
    rows > 0 && count(rows, 'reported problem'), lost > 0 && `${count(lost, 'service')} cannot follow`,
  ].filter(Boolean).join(', ');
  const isFiltered = view.filter.length > 0;
  const matches = byRows ? groups.total : agents.all;
  const [words, kind] = agents.all === undefined ? [`${count(answer.total, 'agent')} match${answer.total === 1 ? 'es' : ''} the filter.`, ''] :
    wrong ? [`Needs attention: ${wrong}.`, 'bad'] : unknown.length ? ['Incomplete: no problem is reported, but not all is known.', 'warn'] :
    matches === 0 ? [byRows ? 'Nothing matches the filter.' : isFiltered ? 'No agent matches the filter.' : 'No agent has reported yet.', ''] :
    // Whether their agents are live is not asked.
    byRows ? [`No problem is reported: ${count(matches, 'row')}, one for each service of an agent.`, ''] :
    [`Well: ${count(agents.all, 'agent')}, ${agents.live === agents.all ? 'all' : whole.format(agents.live)} live, none with a problem.`, 'good'];
  say('state', isFiltered && matches > 0 ? `Of what the filter matches: ${words[0].toLowerCase()}${words.slice(1)}` : words, kind);
  list('not-known', [...unknown, ...left]);
  document.title = `${wrong ? 'Needs attention' : unknown.length ? 'Incomplete' : kind === 'good' ? 'Well' : isFiltered ? 'Filtered' : 'Nothing yet'} – fleet at ${location.host}`;
}

function showAgents({ all, live, silent, refused, listed }, incomplete, now) {
  const away = new Set(incomplete.map(({ edge }) => edge));
  const isOfFilter = all === undefined;
  const byState = () => [[live, 'live'], [silent, 'silent'], [refused, 'refused'], [all - live - silent - refused, 'of which only the name is known']]
    .filter(([number]) => number > 0).map(([number, word]) => `${whole.format(number)} ${word}`).join(', ');
  const more = isOfFilter ? '' : [['refused', refused], ['silent', silent]].filter(([, number]) => number > LISTED)
    .map(([state]) => ` The first ${LISTED} ${state} ones are listed; the filter state=${state} has all.`).join('');
  say('h-agents', !isOfFilter && isOfRows() ? 'Agents of all services' : 'Agents');
  say('agents-words', isOfFilter ? '' : all === 0 ? 'None.' : `${count(all, 'agent')}: ${byState()}${away.size ? ', as last reported' : ''}.${more}`);
  say('agents-caption', isOfFilter ? 'Agents that match the filter' : 'Agents that no edge hears');
  byId('agents').hidden = listed.length === 0;
  tableRows('agents', listed.map((one) => [to([['agent', one.agent]], one.agent), stateOf(one.state), ago(one.heard_at, now), one.edge || '–',
    one.reason || { silent: away.has(one.edge) ? 'its edge has not reported all: the agent may be well' : 'no edge has heard it for 90 s', unknown: 'only its name is known', live: one.problems > 0 ? count(one.problems, 'problem') : 'nothing' }[one.state] || '–']));
}

const problemOf = ({ text, output, tries }) => make('span', {}, text + (tries > 1 ? ` (${tries} times or more)` : ''), output ? make('pre', { tabindex: '0' }, output) : null);
function showProblems(worst, problems, now) {
  byId('s-problems').hidden = !worst || worst.total === 0;
  if (!worst) return;
  const kinds = Object.entries(Object.groupBy(problems.groups, ({ key: [, kind] }) => kind)).map(([kind, all]) => `${kind} ${whole.format(sum(all.map(({ rows }) => rows)))}`);
  say('problems-words', `${count(worst.total, 'problem')}, at most one for each service of an agent: ${problems.cursor ? 'at least ' : ''}${kinds.join(', ')}.` +
    (worst.total > worst.rows.length ? ` The first ${worst.rows.length} are listed; the filter problem=any has all.` : ''));
  byId('problems').hidden = worst.total === 0;
  tableRows('problems', worst.rows.map(({ agent, service, problem }) => [to([['agent', agent]], agent), toService(service),
    make('span', { class: 'bad' }, problem.kind), ago(problem.since, now), problemOf(problem)]));
}

// What is on disk of one service, what is published first. `isPart`: not of all its agents. `isCut`: there may be
// more groups. `staged`: what is not for all. `isOld`: some agents are not heard now.
function spread(name, groups, published, isPart, isCut, staged, isOld) {
  const rows = sum(groups.map((group) => group.rows));
  const newest = groups.find((group) => group.revision && group.revision === published?.revision_id);
  const others = groups.filter((group) => group !== newest);
  const word = ({ revision }) => !revision ? 'nothing yet' : cut(revision) + (revision === staged?.revision_id ? ' (staged)' : '');
  const parts = [...(newest ? [[newest.rows, 'c1', cut(called(published))]] : []),
    ...others.map((group, at) => [group.rows, group.revision ? REVISION_COLOURS[at] || 'c6' : 'c6', word(group)])];
  const listed = parts.slice(0, 5);
  const rest = sum(parts.slice(5).map(([number]) => number));
  let from = 0;
  const picture = draw('svg', { class: 'bar', viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, ...parts.map(([number, colour]) => {
    const width = (100 * number) / rows;
    from += width;
    return draw('rect', { class: colour, x: from - width, width, height: 8 });
  }));
  const behind = published ? rows - (newest?.rows || 0) : 0;
  const lacking = behind > 0 && !isPart ? to([['service', name], ['lacks', published.digest]], 'who lacks it') : null;
  const words = make('span', {}, isCut ? `At least ${count(rows, 'agent')}${published ? '' : ', and what is published is not known'}. ` : isPart ? `${count(rows, 'agent')} match${rows === 1 ? 'es' : ''} the filter. ` : published ? `${percent(rows - behind, rows)} of ${count(rows, 'agent')} ${rows === 1 ? 'has' : 'have'} the published revision on disk${isOld ? ', as last reported' : ''}. ` : `${count(rows, 'agent')}, and what is published is not known. `,
    ...listed.flatMap(([number, colour, text]) => [key(`${text}: ${whole.format(number)}`, colour), ' ']), rest > 0 ? `others: ${whole.format(rest)} ` : null, lacking);
  return { behind, cell: make('div', { class: 'spread' }, picture, words) };
}

function showServices({ answer, agents, groups, problems, services }, now) {
  byId('s-services').hidden = !groups;
  if (!groups) return;
  const byService = (answer) => Map.groupBy(answer.groups, (group) => group.key[0]);
  const [have, fail] = [byService(groups), byService(problems)];
  const documents = new Map(services.services.map((one) => [one.name, one]));
  // Without a filter also those that no agent follows.
  const isPart = view.filter.some(([key]) => ['lacks', 'lacks_by', 'phase', 'problem'].includes(key));
  const names = new Set([...have.keys(), ...(view.filter.length ? [] : documents.keys())]);
  const all = [...names].map((name) => {
    const published = documents.get(name)?.status?.published;
    const of = (have.get(name) || []).map(({ key: [, revision], rows }) => ({ revision, rows }));
    return { name, status: documents.get(name)?.status, published, failing: fail.get(name) || [],
      ...(of.length ? spread(name, of, published, isPart, Boolean(groups.cursor), null, isOld({ answer, agents })) : { behind: 0, cell: groups.cursor ? 'not shown' : 'no agent has reported it' }) };
  }).sort((one, other) => other.behind - one.behind || (one.name < other.name ? -1 : 1));
  const behind = all.filter((one) => one.behind > 0).length;
  const open = all.filter((one) => !one.published && have.has(one.name)).length;
  say('services-words', all.length === 0 ? 'No service matches.' : `${count(all.length, 'service')}. ` +
    (behind > 0 ? `Some agents do not have the published revision of ${whole.format(behind)} on disk.` : open < all.length && !groups.cursor ? 'No agent is known to have another revision than the published one on disk.' : '') +
    (open > 0 ? ` ${whole.format(open)} ${open === 1 ? 'is' : 'are'} not compared.` : '') +
    (all.length > SHOWN ? ` ${SHOWN} are listed; filter by service to see others.` : ''));
  byId('services').hidden = all.length === 0;
  tableRows('services', all.slice(0, SHOWN).map(({ name, status, published, cell, failing }) => [
    toService(name),
    make('span', {}, published ? named(published) : services.next_page && !documents.has(name) ? 'not compared' : 'not known', published ? `, ${ago(published.published_at, now)}` : null,
      status?.pinned ? make('span', { class: 'warn' }, `, pinned by ${status.pinned.by || 'an operator'}`) : null,
      status?.frozen ? make('span', { class: 'warn' }, ', frozen') : null,
      status?.failure ? make('span', { class: 'bad' }, `; ${cannotFollow(status)}`) : null),
    cell,
    failing.length ? make('span', { class: 'bad' }, failing.map(({ key: [, kind], rows }) => `${kind}: ${whole.format(rows)}`).join(', ')) : 'none']));
}

function showMatches(matches) {
  byId('s-rows').hidden = !matches;
  if (!matches) return;
  say('rows-words', matches.total === 0 ? 'None.' : `${count(matches.total, 'row')}, one for each service of an agent. ` +
    (matches.rows.length < matches.total ? `${whole.format(matches.rows.length)} of them are on this page.` : ''));
  byId('rows').hidden = matches.rows.length === 0;
  tableRows('rows', matches.rows.map((row) => [to([['agent', row.agent]], row.agent), toService(row.service), stateOf(row.state),
    named(row.current), row.current && !row.applied ? 'not known' : named(row.applied), row.phase,
    row.problem ? make('span', {}, make('b', { class: 'bad' }, row.problem.kind), ' ', problemOf(row.problem)) : 'none']));
}

function showEdges(edges, now) {
  byId('s-edges').hidden = !edges;
  if (!edges) return;
  const states = Object.entries(Object.groupBy(edges, (edge) => edge.state)).map(([state, of]) => `${whole.format(of.length)} ${state}`).join(', ');
  const worst = [...edges].sort((one, other) => (one.state === 'live') - (other.state === 'live'));
  say('edges-words', edges.length === 0 ? 'No edge has reported.' : `${count(edges.length, 'edge')}: ${states}.${edges.length > LISTED ? ` ${LISTED} are listed; /v1/edges has all.` : ''}`);
  byId('edges').hidden = edges.length === 0;
  tableRows('edges', worst.slice(0, LISTED).map((edge) => [edge.name, stateOf(edge.state), ago(edge.since, now), { number: whole.format(edge.agents) }, edge.version || 'not reported']));
}

function showWho({ name, role, services, by }) {
  say('about', `Signed in as ${name}, with the role ${role}, by ${by === 'token' ? 'a token' : 'a certificate'}. ` +
    (services ? `You see the services ${services.join(', ')}, and of agents what concerns these, alone. Edges are not shown to you.` : ''));
}

function show(data, now) {
  showWho(data.who);
  shown = data;
  byId('filter').hidden = Boolean(view.service);
  say('wrong', data.wrong || '');
  byId('fleet').hidden = Boolean(data.wrong || data.service);
  byId('service').hidden = Boolean(data.wrong || !data.service);
  if (data.wrong) document.title = `Not shown – fleet at ${location.host}`;
  if (data.wrong) return;
  if (data.service) return showService(data, now);
  showFleetState(data, notKnown(data, now), notShown(data));
  showAgents(data.agents, data.answer.incomplete, now);
  showProblems(data.worst, data.problems, now);
  showServices(data, now);
  showMatches(data.matches);
  showEdges(data.edges, now);
  const paged = data.matches || (data.agents.all === undefined ? data.answer : null);
  byId('next').hidden = !paged?.cursor && !view.cursor;
  byId('next').textContent = paged?.cursor ? 'Next page' : 'First page';
  byId('next').value = paged?.cursor || '';
}

function arrive() {
  look();
  byId('filter-line').value = lineOf(view.filter);
  byId('back').href = query(view.filter);
  byId('back-line').hidden = !view.service;
  compared += 1;
  byId('s-diff').hidden = true;
  byId('diff-files').replaceChildren();
  byId('confirm').close();
  say('done', '');
}
arrive();
const asking = follow(load, 'the origin', 10, show, () => {
  arrive();
  shown = null;
  say('wrong', '');
  byId('filter').hidden = true;
});

function go(href) {
  // The same again.
  if (new URL(href, location.href).search === location.search) {
    arrive();
    return asking.again();
  }
  history.pushState(null, '', href);
  moved();
}
function moved() {
  if (location.search === view.at) return;
  arrive();
  asking.again(true);
}
addEventListener('popstate', moved);
document.addEventListener('click', (event) => {
  const link = event.target.closest?.('a[href^="?"]');
  if (!link || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link.getAttribute('href'));
  byId('main').focus();
});
byId('filter').addEventListener('submit', (event) => {
  event.preventDefault();
  const all = pairs(byId('filter-line').value);
  go(query(all));
});
byId('next').addEventListener('click', (event) => {
  view.cursor = event.target.value || null;
  asking.again(true);
  byId('main').focus();
});
