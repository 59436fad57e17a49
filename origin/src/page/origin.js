// The page of an origin: what `/v1/summary` says.

// Full is normal here: what was used least gives way.
const EVICTING = new Set([]);

const counted = (counts, words) => Object.entries(words).filter(([kind]) => counts[kind] > 0)
  .map(([kind, text]) => `${whole.format(counts[kind])} ${text}`).join(', ');
const kindOf = (word) => make('span', { class: ['unhealthy', 'suspended'].includes(word) ? 'key bad' :
  ['pending', 'unknown', 'pinned'].includes(word) ? 'key warn' : 'key' }, word);
const until = (time, now) => Date.parse(time) > now ? `in ${duration((Date.parse(time) - now) / 1000)}` : 'due';
const more = (all) => all.listed.length < all.total ? ` The first ${all.listed.length} are listed; /status has all, page by page.` : '';

function showRepositories(all, now) {
  const words = { suspended: 'suspended', unhealthy: 'unhealthy', unknown: 'not polled yet', healthy: 'healthy', elsewhere: 'of other origins' };
  say('repositories-words', all.total === 0 ? 'No repository is defined.' :
    `${count(all.total, 'repository', 'repositories')}: ${counted(all.counts, words)}.${more(all)}`);
  byId('repositories').hidden = all.total === 0;
  tableRows('repositories', all.listed.map((one) => {
    const next = one.waits_for ? `waits for ${one.waits_for}` : one.held_until ? `the upstream asked to wait: ${until(one.held_until, now)}` :
      one.next_poll ? until(one.next_poll, now) : '–';
    const wrong = one.suspended ? `Suspended: ${one.suspended.reason}` : !one.failure ? 'nothing' :
      `${one.failure.step}: ${one.failure.reason}` + (one.consecutive_failures > 1 ? ` (${one.consecutive_failures} times in succession)` : '');
    return [one.name, kindOf(one.suspended ? 'suspended' : one.health || 'unknown'),
      one.last_success ? `${duration(secondsSince(one.last_success, now))} ago` : '–', next, wrong];
  }));
}

function showServices(all, now) {
  const words = { unhealthy: 'unhealthy', pending: 'not examined yet', pinned: 'pinned', following: 'following', elsewhere: 'of other origins' };
  say('services-words', all.total === 0 ? 'No service is defined.' :
    `${count(all.total, 'service')}: ${counted(all.counts, words)}.${more(all)}`);
  byId('services').hidden = all.total === 0;
  tableRows('services', all.listed.map((one) => {
    const { published, failure, pinned } = one;
    const wrong = failure ? `${failure.of === 'repository' ? `its repository ${failure.repository || ''}: ` : ''}${failure.step}: ${failure.reason}` :
      one.stepping_back ? `an older revision waits: ${one.stepping_back.reason}` : one.building_since ? 'is being built' : 'nothing';
    const by = pinned ? ` by ${pinned.by || 'an operator'}${pinned.reason ? `: ${pinned.reason}` : ''}` : '';
    return [one.name, make('span', {}, kindOf(one.condition || 'unknown'), by),
      published ? make('span', { class: 'key' }, published.version || (published.commit || published.revision_id || '').slice(0, 12)) : 'never published',
      published ? make('span', { class: 'key' }, published.digest.slice(0, 15)) : '–',
      published ? `${duration(secondsSince(published.published_at, now))} ago` : '–', wrong];
  }));
}

function showWork(work, now) {
  const at = ({ phase, done, total, bytes: received }) =>
    `${phase}${total ? `, ${percent(done, total)}` : ''}${received ? `, ${bytes(received)}` : ''}`;
  const fetches = work.fetches.map((one) => `${one.repository}: ${one.phase} (${at(one.progress)})`);
  const builds = work.builds.map((one) => `${one.service} of ${one.repository}: building for ${duration(secondsSince(one.since, now))}`);
  say('work-words', `${count(work.fetches_total, 'poll or fetch', 'polls and fetches')}, ${count(work.builds_total, 'build')}.`);
  list('work', [...builds, ...fetches]);
}

function showStore(store) {
  const figure = (value, words) => make('span', {}, make('b', {}, value), ` ${words}`);
  list('store', [
    figure(bytes(store.bytes), 'of versions, at the last collection'),
    figure(bytes(store.disk_free_bytes), 'free on the disk of data_dir'),
    figure(whole.format(store.superseded_versions), 'superseded versions are retained'),
    figure(whole.format(store.unreferenced_objects), 'unreferenced objects, deleted after a grace period'),
    ...(store.gc_blocked_repositories > 0 ? [figure(whole.format(store.gc_blocked_repositories), 'repositories of which nothing can be deleted')] : []),
    figure(whole.format(store.event_streams), 'edges follow the events'),
  ]);
}

function showMembers(cluster) {
  byId('members').hidden = !cluster;
  if (!cluster) return say('members-words', 'This origin is not in a cluster.');
  say('members-words', !cluster.has_session ? 'This origin has no session: it takes no part in the cluster now.' :
    `${count(cluster.others.length + 1, 'origin')}; this one owns ${count(cluster.owned, 'repository', 'repositories')}.` +
    (cluster.name_is_taken ? ' Another origin has its name.' : ''), cluster.has_session && !cluster.name_is_taken ? '' : 'bad');
  const differs = (one) => [one.same_configuration === false && 'configuration', one.same_signing_keys === false && 'signing keys'].filter(Boolean).join(', ');
  tableRows('members', [cluster.me, ...cluster.others].map((one, at) =>
    [at === 0 ? `${one.name} (this one)` : one.name, one.state, one.zone || '–', differs(one) || 'nothing']));
}

follow('/v1/summary', 'the origin', 5, (it, now) => {
  showState('origin', it, now);
  // Nothing of it is known before the store has answered.
  if (!it.repositories) return;
  showRepositories(it.repositories, now);
  showServices(it.services, now);
  showWork(it.work, now);
  showStore(it.store);
  showMembers(it.cluster);
  showLimits(it.bounds, EVICTING);
});
