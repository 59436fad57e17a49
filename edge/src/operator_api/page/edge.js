// The page of an edge: what `/v1/summary` says.

const CACHE_STATUS = [
  ['hit', 'answered from the cache', 'c1'],
  ['revalidated', 'answered from the cache, after an origin confirmed it', 'c5'],
  ['stale', 'answered from the cache, which may be behind', 'c2'],
  ['miss', 'waited for an origin', 'c3'],
  ['collapsed', 'waited for the same as another request', 'c4'],
  ['forced', 'asked an origin, as the request demanded', 'c6'],
  ['error_4xx', 'error', 'refused with a status 4xx', 'c8'],
  ['error_5xx', 'error', 'failed with a status 5xx', 'c7'],
].map(([name, ...rest]) => rest.length === 2 ? [name, name, ...rest] : [name, `${rest[0]} (${name.slice(-3)})`, ...rest.slice(1)]);
// Errors stand at the foot of a column, and so high that one is seen.
const LEAST = 3;
const STACK = [...CACHE_STATUS].sort(([one], [other]) => other.startsWith('error') - one.startsWith('error'));
const TIERS = [['memory', 'Memory', 'c1'], ['disk', 'Disk', 'c4'], ['origin', 'Origins and shields', 'c3']];

// Full is normal here: what was used least gives way.
const EVICTING = new Set(['disk_bytes', 'memory_bytes', 'parsed_manifest_bytes', 'services', 'service_bytes', 'service_floors',
  'past_version_bytes', 'version_list_bytes', 'version_list_files', 'cached_failures', 'cached_version_failures',
  'agent_following_bytes', 'agent_group_bytes', 'refused_names', 'cached_tokens']);
const FRESHNESS = { fresh: 'fresh', 'stale-while-revalidate': 'stale, revalidated in the background',
  revalidate: 'stale, revalidated before it is served', expired: 'expired' };

function showOrigins(it) {
  const { failing_total: failing, duplicated_total: duplicated } = it.agents;
  const silent = it.agents.reporting - it.agents.connected;
  byId('agents-hint').hidden = failing + duplicated + silent === 0;
  say('agents-link', [failing && `${count(failing, 'agent')} with a problem`, duplicated && `${count(duplicated, 'name')} that two agents use`,
    silent && `${whole.format(silent)} of ${count(it.agents.reporting, 'agent')} silent`].filter(Boolean).join(', '));
  const near = nearLimits(it.bounds, EVICTING);
  byId('limits-hint').hidden = near.length === 0;
  say('limits-link', nearWords(near));
  const state = (up, circuit) => make('span', { class: up ? 'good state' : 'bad state' }, up ? 'up' : circuit === 'open' ? 'down; circuit open' : 'down');
  const events = (origin) => !origin.followed ? 'not followed' : origin.events_followed ? 'followed' :
    origin.last_heartbeat_seconds === null ? 'never received' : `none for ${duration(origin.last_heartbeat_seconds)}`;
  tableRows('origins', [
    ...it.origins.map((one) => [one.name, state(one.up, one.circuit), events(one), one.last_error || 'none']),
    ...it.shields.map((one) => [`${one.name} (shield)`, state(one.up, one.circuit), '–', one.last_error || 'none']),
  ]);
}

function showRequests(hour, period) {
  const all = sum(CACHE_STATUS.map(([name]) => sum(hour.requests[name])));
  const other = (name) => sum(hour.agents[name]);
  const errors = (kind) => other(kind) - sum(hour.requests[kind]);
  const [refused, failed] = [errors('error_4xx'), errors('error_5xx')];
  const missing = sum(hour.gaps.map(([from, to]) => from - to));
  say('requests-words', `${count(all, 'request')} for something cached ${period}: downloads, manifests and service lookups. ` +
    `Besides, ${count(other('requests') - all, 'poll, stream or report', 'polls, streams and reports')}` +
    `${refused ? `, ${whole.format(refused)} of them refused (4xx)` : ''}${failed ? `, ${whole.format(failed)} of them failed (5xx)` : ''}.` +
    (missing > 0 ? ` Nothing was recorded for ${duration(missing)}: this machine slept, or was too busy.` : ''));
  plot(byId('requests-plot'), 'Requests by Cache-Status', hour, STACK.map(([name, title, , colour]) =>
    ({ name: title, colour, least: name.startsWith('error') ? LEAST : 0, minutes: byMinute(hour, hour.requests[name]) })), (number) => whole.format(number));
  tableRows('requests', CACHE_STATUS.map(([name, title, does, colour]) => {
    const number = sum(hour.requests[name]);
    return [key(title, colour), does, { number: whole.format(number) }, { number: percent(number, all) }];
  }));
  return all;
}

function showCache(it, hour, period, requests) {
  const total = (group, name) => sum(hour[group][name]);
  const of = (group) => sum(TIERS.map(([tier]) => total(group, tier)));
  const [bodies, sent, received] = [of('downloads'), of('sent_bytes'), total('origins', 'received_bytes')];
  const figure = (value, words) => make('span', {}, make('b', {}, value), words);
  // A shield also spares origins what it sends to other edges.
  const given = sent + total('peers', 'sent_bytes');
  const to = total('peers', 'requests') ? 'agents and other edges' : 'agents';
  const wanted = requests + total('peers', 'cached_requests');
  const asked = total('origins', 'requests') - total('origins', 'not_sent');
  const saved = (value, part, all, unit, words) => figure(part >= 0 ? value(part) : value(0),
    ` ${unit} saved towards origins and shields${part >= 0 ? ` (${percent(part, all)})` : ''}: ${words}${part >= 0 ? '' : ' so far'}`);
  list('cache-figures', [
    figure(percent(bodies - total('downloads', 'origin'), bodies), ` hit ratio of ${count(bodies, 'download')}`),
    figure(percent(sent - total('sent_bytes', 'origin'), sent), ` hit ratio of ${bytes(sent)} sent`),
    saved(bytes, given - received, given, '', `${to} got ${bytes(given)}, this edge received ${bytes(received)}`),
    saved(whole.format, wanted - asked, wanted, 'requests', `${to} sent ${whole.format(wanted)}, this edge ${whole.format(asked)}`),
  ]);
  plot(byId('bytes-plot'), 'Bytes to agents by tier', hour, TIERS.map(([tier, name, colour]) =>
    ({ name, colour, minutes: byMinute(hour, hour.sent_bytes[tier]) })), bytes);
  const { cache } = it;
  const filled = (part, all, colour) => make('span', {}, `${bytes(part)} of ${bytes(all)} (${percent(part, all)})`, bar(part, all, colour));
  const number = (group, name) => ({ number: whole.format(total(group, name)) });
  tableRows('tiers', [
    [key('Memory', 'c1'), number('objects', 'memory'), { number: bytes(total('sent_bytes', 'memory')) },
      filled(cache.memory_bytes, cache.memory_limit_bytes, 'c1'), number('evictions', 'memory')],
    [key('Disk', 'c4'), number('objects', 'disk'), { number: bytes(total('sent_bytes', 'disk')) },
      filled(cache.bytes, cache.limit_bytes, 'c4'), number('evictions', 'disk')],
    [key('Origins and shields', 'c3'), { number: `${whole.format(total('objects', 'origins'))} + ${whole.format(total('objects', 'shields'))}` },
      { number: bytes(total('sent_bytes', 'origin')) }, '–', { number: '–' }],
  ]);
  const failures = Object.keys(hour.fills).filter((one) => one !== 'ok' && one !== 'collapsed' && total('fills', one) > 0);
  const failed = sum(failures.map((one) => total('fills', one)));
  const reasons = failures.map((one) => `${whole.format(total('fills', one))} ${one}`).join(', ');
  say('fills-words', `${count(total('fills', 'ok') + failed, 'fill')} ${period}, ${failed === 0 ? 'none' : whole.format(failed)} of them failed${failed ? ` (${reasons})` : ''}; ` +
    `${count(total('fills', 'collapsed'), 'request')} waited for a fill of another. ` +
    (cache.is_writing ? `The disk has ${count(cache.objects, 'object')}.` : 'The disk takes no objects at present.'));
  const peers = total('peers', 'requests');
  say('peers-words', peers ? `As a shield it answered ${count(peers, 'request')} of other edges with ${bytes(total('peers', 'sent_bytes'))}.` : '');
}

function showServices(it) {
  const { total, oldest } = it.services;
  const others = Object.keys(FRESHNESS).slice(1).filter((key) => it.services[key] > 0)
    .map((key) => `${whole.format(it.services[key])} ${FRESHNESS[key]}`);
  say('services-words', total === 0 ? 'No service is cached. The first request of an agent fetches one.' :
    `${count(total, 'service')}: ${[`${whole.format(it.services.fresh)} fresh`, ...others].join('; ')}.`);
  byId('oldest').hidden = oldest.length === 0;
  tableRows('oldest', oldest.map((one) => [
    make('a', { href: `/v1/explain?service=${encodeURIComponent(one.service)}` }, one.service),
    `${duration(one.age_seconds)} ago`, FRESHNESS[one.freshness] || one.freshness,
    one.last_failure ? `${one.why}. The last query failed: ${one.last_failure}` : one.why,
  ]));
}

function showAgents(agents, now) {
  const { reporting, connected, failing_total: failing, duplicated_total: duplicated, listed } = agents;
  const words = [`${count(reporting, 'agent')} reported within a day; ${whole.format(connected)} connected`];
  if (reporting > connected) words.push(`${whole.format(reporting - connected)} silent`);
  if (failing) words.push(`${whole.format(failing)} with a problem`);
  if (duplicated) words.push(`${count(duplicated, 'name')} that two agents use at the same time`);
  say('agents-words', reporting === 0 ? 'No agent has reported.' :
    `${words.join('; ')}.${listed.length < reporting ? ` The first ${listed.length} are listed; /v1/agents has all.` : ''}`);
  byId('agents').hidden = listed.length === 0;
  tableRows('agents', listed.map((one) => {
    const { problem } = one;
    const wrong = [];
    if (one.duplicated) wrong.push(make('b', { class: 'bad' }, 'Two agents use this name at the same time. '));
    if (problem) {
      wrong.push(make('b', { class: 'bad' }, `${problem.service}: ${problem.kind}. `),
        `${problem.text} (${count(problem.tries, 'try', 'tries')} in ${duration(secondsSince(problem.since, now))})`);
      if (problem.output) wrong.push(' Output: ', make('code', {}, problem.output), '.');
      if (one.problems > 1) wrong.push(` ${count(one.problems - 1, 'more service')} with a problem.`);
    }
    if (one.state !== 'connected') wrong.push(wrong.length ? ' Silent.' : 'silent');
    return [make('a', { href: `/v1/agents/${encodeURIComponent(one.agent)}` }, one.agent),
      one.state === 'connected' ? make('span', { class: 'state' }, 'connected') : make('span', { class: 'warn state' }, `not heard for ${duration(secondsSince(one.heard_at, now))}`),
      { number: whole.format(one.services) },
      make('span', {}, ...(wrong.length ? wrong : ['nothing']))];
  }));
}

follow('/v1/summary', 'the edge', 5, (it, now) => {
  const hour = lastHour(it.last_hour, now);
  const period = hour.seconds >= 3600 ? 'in the last hour' : `in the last ${duration(hour.seconds)}, since the start`;
  for (const caption of document.querySelectorAll('.period')) caption.textContent = `${caption.closest('table').id === 'tiers' ? 'By tier' : 'Requests'}, ${period}`;
  showState('edge', it, now);
  showOrigins(it);
  const requests = showRequests(hour, period);
  showCache(it, hour, period, requests);
  showServices(it);
  showLimits(it.bounds, EVICTING);
  showAgents(it.agents, now);
});
