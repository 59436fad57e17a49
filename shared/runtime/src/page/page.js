'use strict';
// What Weir's pages share: elements, words for numbers and times, tables, plots, and the question that is repeated.
// Data becomes text and attributes, never markup: names and texts come from others.

const byId = (id) => document.getElementById(id);

function fill(node, name, attributes, content) {
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...content.filter((part) => part !== null && part !== undefined));
  return node;
}
const make = (name, attributes, ...content) => fill(document.createElement(name), name, attributes, content);
const draw = (name, attributes, ...content) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', name), name, attributes, content);

// Sets a text only when it changes: a screen reader reads changes of live regions.
function say(id, text, kind) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
  if (kind !== undefined && node.className !== kind) node.className = kind;
  node.hidden = text === '';
}
const list = (id, items) => {
  byId(id).replaceChildren(...items.map((item) => make('li', {}, item)));
  byId(id).hidden = items.length === 0;
};

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const count = (number, one, many) => `${whole.format(number)} ${number === 1 ? one : many || one + 's'}`;
const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);

// Rounded down, so that 99.98 % is not all of it.
function percent(part, all) {
  if (!(all > 0)) return '–';
  const share = (100 * part) / all;
  if (share > 0 && share < 0.1) return '< 0.1 %';
  return `${share === 100 || share === 0 ? share : (Math.floor(share * 10) / 10).toFixed(1)} %`;
}
function bytes(number) {
  let [value, unit] = [Math.abs(number), 0];
  while (value >= 1024 && unit < 5) [value, unit] = [value / 1024, unit + 1];
  const digits = unit > 0 && value < 10 ? 1 : 0;
  return `${number < 0 ? '−' : ''}${value.toFixed(digits)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit]}`;
}
function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 90 * 60) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h`;
  return count(Math.round(seconds / 86400), 'day');
}
const secondsSince = (time, now) => Math.max(0, (now - Date.parse(time)) / 1000);
const clock = (time) => time.toLocaleTimeString('en-GB');

// The rows of a table with a heading in each row. A cell is text or a node; `{number}` aligns it to the right.
function rows(table, all) {
  const head = [...table.querySelectorAll('thead th')].map((th) => th.textContent);
  const before = table.tBodies[0];
  const focused = before.contains(document.activeElement) ? document.activeElement.outerHTML : null;
  const body = make('tbody', {}, ...all.map((cells) => make('tr', {}, ...cells.map((cell, at) => {
    const isNumber = cell !== null && typeof cell === 'object' && 'number' in cell;
    const content = isNumber ? cell.number : cell;
    if (at === 0) return make('th', { scope: 'row' }, content);
    return make('td', { 'data-label': head[at], ...(isNumber ? { class: 'number' } : {}) }, content);
  }))));
  // A selection stays where nothing changes, and the focus where its link or button is still there.
  if (before.isEqualNode(body)) return;
  before.replaceWith(body);
  if (focused) [...body.querySelectorAll('a, button')].find((one) => one.outerHTML === focused)?.focus({ preventScroll: true });
}
const tableRows = (id, all) => rows(byId(id), all);

// Beside a number that says the same.
function bar(part, all, colour) {
  const width = all > 0 ? Math.min(100, (100 * part) / all) : 0;
  return draw('svg', { class: 'bar', viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
    draw('rect', { class: colour, width, height: 8 }));
}
const key = (name, colour) => make('span', { class: 'key' }, draw('svg', { class: 'swatch', viewBox: '0 0 8 8', 'aria-hidden': 'true' },
  draw('rect', { class: colour, width: 8, height: 8 })), name);

// The intervals that are in one of the 60 minutes that a plot has, with their minute. `now`: in milliseconds.
function lastHour(all, now) {
  const minuteOf = (seconds) => Math.floor(seconds / 60);
  const newest = all.seconds_ago.length - 1;
  const minutes = all.seconds_ago.map((ago, at) => minuteOf(now / 1000) - minuteOf(now / 1000 - ago - (at < newest ? all.interval_seconds / 2 : 0)));
  const cut = (counts) => counts.filter((_, at) => minutes[at] < 60);
  const groups = Object.entries(all).filter(([, group]) => typeof group === 'object' && !Array.isArray(group))
    .map(([name, group]) => [name, Object.fromEntries(Object.entries(group).map(([one, counts]) => [one, cut(counts)]))]);
  return { ...all, ...Object.fromEntries(groups), minutes_ago: cut(minutes) };
}

// Counts of intervals by minute of the clock in the last hour, this minute last. An interval is in the minute of its middle,
// whole, so that its count stays where it was when it is drawn again.
function byMinute(hour, counts) {
  const minutes = new Array(60).fill(0);
  counts.forEach((number, at) => { minutes[59 - hour.minutes_ago[at]] += number; });
  return minutes;
}

// A plot of stacked columns, one a minute, with the same numbers as a table. `series`: {name, colour, minutes, least}, where
// `least` is the least height in percent. `hour` says how far back there is something to show, and what is missing.
function plot(figure, what, hour, series, shown) {
  const reach = hour.seconds;
  const totals = Array.from({ length: 60 }, (_, minute) => sum(series.map((one) => one.minutes[minute])));
  const most = Math.max(...totals);
  const peak = totals.lastIndexOf(most);
  const words = most === 0 ? `${what}: none in the last hour.` :
    `${what}, the last hour: ${shown(sum(totals))} in all, at most ${shown(most)} in a minute, ${59 - peak} min ago. ` +
    'The table below has the numbers.';
  const columns = totals.map((_, minute) => {
    let top = 100;
    return draw('g', {}, draw('title', {}, `${59 - minute} min ago: ${shown(totals[minute])}`),
      draw('rect', { x: minute, y: 0, width: 1, height: 100, fill: 'transparent' }),
      ...series.filter((one) => one.minutes[minute] > 0).map((one) => {
        const height = Math.max(one.least || 0, (100 * one.minutes[minute]) / most);
        top -= height;
        return draw('rect', { class: one.colour, x: minute + 0.1, y: top, width: 0.8, height });
      }));
  });
  const id = figure.id;
  const picture = draw('svg', { class: 'plot', viewBox: '0 0 60 100', preserveAspectRatio: 'none', role: 'img',
    'aria-labelledby': `${id}-title ${id}-words` },
  draw('title', { id: `${id}-title` }, what), draw('desc', { id: `${id}-words` }, words),
  draw('rect', { class: 'before', x: 0, y: 0, width: Math.max(0, 60 - reach / 60), height: 100 }),
  ...hour.gaps.map(([from, to]) => draw('rect', { class: 'gap', x: Math.max(0, 60 - from / 60), y: 0, width: (Math.min(3600, from) - to) / 60, height: 100 },
    draw('title', {}, `nothing was recorded for ${duration(from - to)}`))), ...columns);
  const start = reach < 3600 ? `it started ${duration(reach)} ago` : '';
  figure.querySelector('.picture').replaceChildren(
    make('div', { class: 'axis', 'aria-hidden': 'true' }, make('span', {}, most === 0 ? 'none' : `at most ${shown(most)} a minute`), make('span', {}, start)),
    picture,
    make('div', { class: 'axis', 'aria-hidden': 'true' }, ...['60 min ago', '30 min ago', 'now'].map((at) => make('span', {}, at))));
  const table = figure.querySelector('table');
  const used = series.filter((one) => sum(one.minutes) > 0);
  table.tHead.replaceChildren(make('tr', {}, ...['Minutes ago', 'All', ...used.map((one) => one.name)]
    .map((name, at) => make('th', { scope: 'col', ...(at > 0 ? { class: 'number' } : {}) }, name))));
  const parts = Array.from({ length: 12 }, (_, at) => [55 - 5 * at, 60 - 5 * at]);
  rows(table, parts.reverse().map(([from, to]) => [`${from} to ${to}`, ...[totals, ...used.map((one) => one.minutes)]
    .map((minutes) => ({ number: shown(sum(minutes.slice(60 - to, 60 - from))) }))]));
}

// Whether a role can serve, and the reasons why not.
function showState(role, it, now) {
  const kind = !it.ready ? 'bad' : it.reasons.length ? 'warn' : 'good';
  const word = { bad: 'Not ready', warn: 'Needs attention', good: 'Ready' }[kind];
  const more = { bad: 'it cannot serve all that it should', warn: 'it serves, with the problems below',
    good: 'it can serve all that it should' }[kind];
  document.title = `${word} – ${role} ${it.name}`;
  say('name', `Weir ${role} ${it.name}`);
  say('about', `Version ${it.version}, started ${duration(secondsSince(it.started, now))} ago.`);
  say('state', `${word}: ${more}.`, kind);
  list('reasons', it.reasons);
}

// Limits, those near their bound first. Of those in `evicting` the least used gives way: full is normal.
const NEAR = 0.8;
const shareOf = (one) => one.limit > 0 ? one.in_use / one.limit : 0;
const nearLimits = (bounds, evicting) => bounds.filter((one) => shareOf(one) >= NEAR && !evicting.has(one.bound));
const nearWords = (near) => `${count(near.length, 'limit')} in use by ${100 * NEAR} % or more`;
function showLimits(bounds, evicting) {
  const near = nearLimits(bounds, evicting);
  const amount = (one) => one.bound.endsWith('_bytes') ? `${bytes(one.in_use)} of ${bytes(one.limit)}` :
    `${whole.format(one.in_use)} of ${whole.format(one.limit)}`;
  const row = (one) => {
    const words = shareOf(one) < NEAR ? '' : !near.includes(one) ? ' – normal: the least used gives way' : shareOf(one) >= 1 ? ' – full' : ' – near its limit';
    return [one.bound, make('span', near.includes(one) ? { class: 'warn' } : {}, amount(one) + words), { number: percent(one.in_use, one.limit) }];
  };
  say('limits-words', near.length ? `${nearWords(near)}.` : 'No limit is near.', near.length ? 'warn' : '');
  const rank = (one) => shareOf(one) + (near.includes(one) ? 10 : 0);
  tableRows('limits', [...bounds].sort((one, other) => rank(other) - rank(one)).slice(0, 6).map(row));
  tableRows('all-limits', [...bounds].sort((one, other) => one.bound < other.bound ? -1 : 1).map(row));
}

// Asks again and again, one question at a time, and not while nobody looks. `load`: a path, or what makes an answer of several
// by its argument. `show` gets each answer. What is missing or old is said in words. The token is in this variable alone. `left`: empties
// what else was shown, when nobody is signed in any more.
function follow(load, subject, everySeconds, show, left = () => {}) {
  const form = byId('sign-in');
  const where = location.host;
  const role = byId('name').textContent;
  // `stopped`: nobody asks again by himself, after a 401 or where no token can be right.
  let [token, timer, asking, paused, stopped, last, failedSince, problem] = ['', 0, null, false, false, null, null, null];
  // What fails is asked after 1, 2, 4, 4 … times the interval.
  let failures = 0;
  const wait = () => everySeconds * 2 ** Math.min(2, Math.max(0, failures - 1));
  const seconds = (since) => (Date.now() - since) / 1000;
  const later = () => { clearTimeout(timer); if (!paused && !stopped && !document.hidden) timer = setTimeout(ask, wait() * 1000); };
  const who = () => byId('name').textContent.replace(/^Weir /, '');
  const options = (signal) => ({ headers: token ? { authorization: `Bearer ${token}` } : {}, signal, cache: 'no-store',
    credentials: 'same-origin', redirect: 'error' });
  // An error of an answer has its `status` and its `problem`.
  async function get(path, more) {
    const answer = await fetch(path, more);
    const said = answer.ok ? await answer.json() : await answer.json().catch(() => null);
    if (!answer.ok) throw Object.assign(new Error(said?.detail || said?.title || `it answered ${answer.status}`), { status: answer.status, problem: said });
    return said;
  }

  // Each second, so that an age is never an old one.
  function asOf() {
    const waits = asking ? seconds(asking.begun) : 0;
    const isOverdue = waits >= 2;
    byId('data').hidden = last === null;
    signOut.hidden = !token;
    byId('data').classList.toggle('stale', failedSince !== null || isOverdue);
    const words = paused ? ['Paused.'] : [];
    if (last === null) words.push(problem || isOverdue ? '' : 'No data yet.');
    else if (paused || failedSince || isOverdue) words.push(`All of this is as of ${clock(last)}, ${duration(seconds(last))} ago.`);
    else words.push(`As of ${clock(last)}. Refreshes every ${everySeconds} s.`);
    if (isOverdue) words.push(`No answer yet for ${duration(waits)}.`);
    say('as-of', words.filter(Boolean).join(' '));
  }
  function tell() {
    if (!problem) return;
    const since = last ? `The last answer is of ${clock(last)}: what stands below may be wrong by now.` : 'Nothing is known.';
    const again = paused || stopped ? '' : ` It is asked again after ${wait()} s.`;
    say('notice', `${problem.title} since ${clock(failedSince)}: ${problem.why}. ${since}${again}`, 'notice');
    document.title = `${problem.title} – ${who()}`;
  }
  function failed(begun, title, why) {
    failures += 1;
    failedSince = failedSince || begun;
    problem = { title, why };
    tell();
  }
  function signIn(words) {
    asking?.abort.abort();
    clearTimeout(timer);
    [token, asking, last, failedSince, problem, stopped, failures] = ['', null, null, null, null, true, 0];
    form.hidden = false;
    linked.hidden = true;
    linked.replaceChildren();
    say('about', '');
    left();
    asOf();
    say('notice', words, 'notice');
    document.title = `Sign in – ${who()}`;
  }
  function refused({ status, problem: said }, mine) {
    // By the token of this request: another one may have been given since.
    if (status === 401 && form) return signIn(mine.token ? 'The token is wrong.' : '');
    stopped = String(said?.type).endsWith('no-operator-token');
    const words = said?.title ? ` (${said.title}. ${said.detail || ''})` : '';
    failed(mine.begun, `${subject[0].toUpperCase()}${subject.slice(1)} ${status < 500 ? 'refused' : 'failed'}`, `it answered ${status}${words}`);
  }
  function took(said, mine) {
    [last, failedSince, problem, stopped, failures] = [new Date(), null, null, false, 0];
    const wasAtForm = form?.contains(document.activeElement);
    if (form) form.hidden = true;
    say('notice', '');
    // Times of the process are compared with its own clock.
    show(said, Date.parse(said.now) || last.getTime());
    if (wasAtForm) byId('main').focus();
  }
  async function ask() {
    if (asking) return;
    clearTimeout(timer);
    const mine = asking = { abort: new AbortController(), begun: new Date(), token };
    const limit = setTimeout(() => mine.abort.abort(), 10000);
    let done;
    try {
      const from = (path) => get(path, options(mine.abort.signal));
      const said = await (typeof load === 'string' ? from(load) : load(from));
      done = () => took(said, mine);
    } catch (error) {
      done = () => error.status ? refused(error, mine) : failed(mine.begun, `No answer from ${subject}`, error.name === 'AbortError' ? 'it did not answer within 10 s' :
        error instanceof TypeError ? 'it cannot be reached' : `its answer cannot be read (${error.message})`);
    }
    clearTimeout(limit);
    // What else this question asked is not needed any more.
    mine.abort.abort();
    // A token was given meanwhile, and another request has it.
    if (asking !== mine) return;
    asking = null;
    try {
      done();
    } catch (error) {
      failed(mine.begun, `No answer from ${subject}`, `its answer cannot be read (${error.message})`);
    }
    asOf();
    later();
  }
  document.addEventListener('visibilitychange', () => { if (document.hidden) clearTimeout(timer); else if (!paused && !stopped) ask(); });
  byId('pause').addEventListener('click', (event) => {
    paused = !paused;
    event.target.setAttribute('aria-pressed', String(paused));
    clearTimeout(timer);
    tell();
    asOf();
    if (!paused && !stopped) ask();
  });
  form?.addEventListener('submit', (event) => {
    event.preventDefault();
    const given = byId('token').value.trim();
    byId('token').value = '';
    if (!/^[\x21-\x7e]+$/.test(given)) return say('notice', 'A token has letters, digits and signs of ASCII alone.', 'notice');
    token = given;
    again(true);
  });
  const signOut = make('button', { type: 'button', id: 'sign-out', hidden: '' }, 'Sign out');
  signOut.addEventListener('click', () => {
    signIn('You are signed out.');
    byId('token').focus();
  });
  byId('pause').after(' ', signOut);
  // Asks at once. `isOther`: something else than before, which is not known yet.
  function again(isOther) {
    asking?.abort.abort();
    [asking, stopped, failures] = [null, false, 0];
    if (isOther) [last, failedSince, problem] = [null, null, null];
    if (isOther) say('notice', '');
    ask();
    asOf();
  }
  // A link cannot send a token: what it leads to is shown here.
  const linked = make('section', { id: 'linked', tabindex: '-1', hidden: '' });
  byId('main').append(linked);
  document.addEventListener('click', async (event) => {
    const link = token && event.target.closest?.('a[href^="/"]');
    if (!link) return;
    event.preventDefault();
    const href = link.getAttribute('href');
    const used = token;
    const [status, answer] = await fetch(href, options(AbortSignal.timeout(10000))).then(async (got) => [got.status, `${got.ok ? '' : `${got.status} `}${await got.text()}`])
      .catch((error) => [0, `No answer: ${error.message}`]);
    if (token !== used) return;
    if (status === 401) return signIn('The token is wrong.');
    const close = make('button', { type: 'button' }, 'Close');
    close.addEventListener('click', () => { linked.hidden = true; link.focus(); });
    const most = 200000;
    linked.replaceChildren(make('h2', {}, href), close, make('pre', { tabindex: '0' }, answer.slice(0, most) + (answer.length > most ? '\n… (cut off)' : '')));
    linked.hidden = false;
    linked.focus();
  });
  byId('name').textContent = `${role} at ${where}`;
  if (form && location.protocol === 'http:' && !/^(localhost|127\..*|\[::1\])$/.test(location.hostname))
    form.querySelector('label').before(make('p', { class: 'warn' }, 'This connection is not encrypted: who reads the network gets the token.'));
  setInterval(() => { if (!document.hidden) asOf(); }, 1000);
  ask();
  async function once(path, more) {
    const used = token;
    try {
      return await get(path, more);
    } catch (error) {
      if (error.status === 401 && form && token === used) signIn(used ? 'The token is wrong.' : '');
      throw error;
    }
  }
  // Changes something; without a limit, because what was sent may be done without an answer.
  const send = (method, path, body) => once(path, { ...options(), method, body: JSON.stringify(body),
    headers: { ...options().headers, 'content-type': 'application/json' } });
  const read = (path) => once(path, options());
  return { again, send, read };
}
