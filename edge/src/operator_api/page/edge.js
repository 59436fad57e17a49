// The page of an edge: what `/v1/summary` says.

const CACHE_STATUS = [
  ['hit', 'answered from the cache', 'c1'],
  ['revalidated', 'answered from the cache, after an origin confirmed it', 'c5'],
  ['stale', 'answered from the cache, which may be behind', 'c2'],
  ['miss', 'waited for an origin', 'c3'],
  ['collapsed', 'waited for the same as another request', 'c4'],
  ['forced', 'asked an origin, as the request demanded', 'c6'],
  ['error', 'answered with an error', 'c7'],
];
const TIERS = [['memory', 'Memory', 'c1'], ['disk', 'Disk', 'c4'], ['origin', 'Origins and shields', 'c3']];

// Full is normal here: what was used least gives way.
const EVICTING = new Set(['disk_bytes', 'memory_bytes', 'parsed_manifest_bytes', 'services', 'service_bytes', 'service_floors',
  'past_version_bytes', 'version_list_bytes', 'version_list_files', 'cached_failures', 'cached_version_failures',
  'agent_following_bytes', 'agent_group_bytes', 'refused_names', 'cached_tokens']);
const FRESHNESS = { fresh: 'fresh', 'stale-while-revalidate': 'stale, revalidated in the background',
  revalidate: 'stale, revalidated before it is served', expired: 'expired' };

function showOrigins(it) {
  const { failing_total: failing, duplicated_total: duplicated } = it.agents;
  byId('agents-hint').hidden = failing + duplicated === 0;
  say('agents-link', `${count(failing, 'agent')} with a problem${duplicated ? `, ${count(duplicated, 'name')} that two agents use` : ''}`);
  const state = (up, circuit) => make('span', { class: up ? 'good' : 'bad' }, up ? 'up' : circuit === 'open' ? 'down; not asked for now' : 'down');
  const events = (origin) => !origin.followed ? 'not followed' : origin.events_followed ? 'followed' :
    origin.last_heartbeat_seconds === null ? 'never received' : `none for ${duration(origin.last_heartbeat_seconds)}`;
  tableRows('origins', [
    ...it.origins.map((one) => [one.name, state(one.up, one.circuit), events(one), one.last_error || 'none']),
    ...it.shields.map((one) => [`${one.name} (shield)`, state(one.up, one.circuit), '–', one.last_error || 'none']),
  ]);
}

function showRequests(hour, period) {
  const all = sum(CACHE_STATUS.map(([name]) => sum(hour.requests[name])));
  say('requests-words', `${count(all, 'request')} ${period}.`);
  plot(byId('requests-plot'), 'Requests by Cache-Status', hour.seconds, CACHE_STATUS.map(([name, , colour]) =>
    ({ name, colour, minutes: byMinute(hour, hour.requests[name]) })), (number) => whole.format(number));
  tableRows('requests', CACHE_STATUS.map(([name, does, colour]) => {
    const number = sum(hour.requests[name]);
    return [key(name, colour), does, { number: whole.format(number) }, { number: percent(number, all) }];
  }));
  return all;
}

function showCache(it, hour, period, requests) {
  const total = (group, name) => sum(hour[group][name]);
  const of = (group) => sum(TIERS.map(([tier]) => total(group, tier)));
  const [bodies, sent, received] = [of('downloads'), of('sent_bytes'), total('origins', 'received_bytes')];
  const figure = (value, words) => make('span', {}, make('b', {}, value), words);
  const saved = sent - received;
  list('cache-figures', [
    figure(percent(bodies - total('downloads', 'origin'), bodies), ` hit ratio of ${count(bodies, 'download')}`),
    figure(percent(sent - total('sent_bytes', 'origin'), sent), ` hit ratio of ${bytes(sent)} sent`),
    figure(saved >= 0 ? bytes(saved) : '0 B', saved >= 0 ?
      ` saved towards origins (${percent(saved, sent)}): agents got ${bytes(sent)}, origins sent ${bytes(received)}` :
      ` saved towards origins: they sent ${bytes(received)}, agents got ${bytes(sent)} so far`),
    figure(whole.format(Math.max(0, requests - total('origins', 'requests'))),
      ` requests saved towards origins: agents sent ${whole.format(requests)}, this edge ${whole.format(total('origins', 'requests'))}`),
  ]);
  plot(byId('bytes-plot'), 'Bytes to agents by tier', hour.seconds, TIERS.map(([tier, name, colour]) =>
    ({ name, colour, minutes: byMinute(hour, hour.sent_bytes[tier]) })), bytes);
  const { cache } = it;
  const filled = (part, all, colour) => make('span', {}, `${bytes(part)} of ${bytes(all)} (${percent(part, all)})`, bar(part, all, colour));
  const number = (group, name) => ({ number: whole.format(total(group, name)) });
  tableRows('tiers', [
    [key('Memory', 'c1'), number('objects', 'memory'), { number: bytes(total('sent_bytes', 'memory')) },
      filled(cache.memory_bytes, cache.memory_limit_bytes, 'c1'), number('evictions', 'memory')],
    [key('Disk', 'c4'), number('objects', 'disk'), { number: bytes(total('sent_bytes', 'disk')) },
      filled(cache.bytes, cache.limit_bytes, 'c4'), number('evictions', 'disk')],
    [key('Shields', 'c3'), number('objects', 'shields'), { number: '–' }, '–', { number: '–' }],
    [key('Origins', 'c3'), number('objects', 'origins'), { number: bytes(total('sent_bytes', 'origin')) }, '–', { number: '–' }],
  ]);
  const failed = total('fills', 'all') - total('fills', 'ok');
  say('fills-words', `${count(total('fills', 'all'), 'fill')} ${period}, ${failed === 0 ? 'none' : whole.format(failed)} of them failed; ` +
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
  const words = [`${count(reporting, 'agent')} told this edge within a day what they run; ${whole.format(connected)} connected`];
  if (failing) words.push(`${whole.format(failing)} with a problem`);
  if (duplicated) words.push(`${count(duplicated, 'name')} that two agents use at the same time`);
  say('agents-words', reporting === 0 ? 'No agent has told this edge what it runs.' :
    `${words.join('; ')}.${listed.length < reporting ? ` The first ${listed.length} are listed; /v1/agents has all.` : ''}`);
  byId('agents').hidden = listed.length === 0;
  tableRows('agents', listed.map((one) => {
    const { problem } = one;
    const wrong = [];
    if (one.duplicated) wrong.push(make('b', { class: 'bad' }, 'Two agents use this name at the same time. '));
    if (problem) {
      wrong.push(make('b', { class: 'bad' }, `${problem.service}: ${problem.kind}. `),
        `${problem.text} (${count(problem.tries, 'try', 'tries')} in ${duration(secondsSince(problem.since, now))})`);
      if (problem.output) wrong.push(' Its last words: ', make('code', {}, problem.output), '.');
      if (one.problems > 1) wrong.push(` ${count(one.problems - 1, 'more service')} with a problem.`);
    }
    return [make('a', { href: `/v1/agents/${encodeURIComponent(one.agent)}` }, one.agent),
      one.state === 'connected' ? 'connected' : make('span', { class: 'warn' }, `not heard for ${duration(secondsSince(one.heard_at, now))}`),
      { number: whole.format(one.services) },
      make('span', {}, ...(wrong.length ? wrong : ['nothing']))];
  }));
}

follow('/v1/summary', 'the edge', 5, (it, now) => {
  const hour = it.last_hour;
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
