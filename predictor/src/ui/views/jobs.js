/** The list of all jobs: a table with search, filter by state and sorting, jobs with a problem first. */

import { fill, h, say, set } from '../charts/dom.js';
import { ago, amount, count, NONE, percent, plural, seconds } from '../charts/format.js';
import { nextFrame } from '../charts/frame.js';
import { show } from '../connection.js';
import { queryOf, setQuery } from '../job/range.js';
import { gainWords, stateWords } from '../job/summary.js';
import { Sorting } from '../sorted.js';
import { listen } from '../stream.js';

/** Number of jobs that are listed at first. */
const ROWS = 20;
const STATES = ['running', 'starting', 'stalled', 'paused', 'failed', 'unreadable', 'finished'];
const COLUMNS = ['Job', 'State', 'Last report', 'Workers', 'Step time', 'Throughput', 'Gain', 'Time lost waiting', 'Forecast error'];
/** Time for which a job that failed or stalled is listed first, in milliseconds. */
const TROUBLE_MS = 86_400_000;
/** Titles in front of the values on a phone, from the third column on. */
const SHORT = ['Report', 'Workers', 'Step', 'Throughput', 'Gain', 'Lost', 'Error'];

/** @type {import('../main.js').View} */
export function jobsPage(content, _name, signal) {
  const figures = h('dl', { class: 'figures' });
  const asked = queryOf(location.hash);
  let state = STATES.includes(asked.get('state') ?? '') ? asked.get('state') : null;
  let more = false;
  const search = h('input', { type: 'search', placeholder: 'Find a job', 'aria-label': 'Find a job', value: asked.get('find') ?? null, oninput: () => store() });
  const filters = h('div', { class: 'ranges', role: 'group', 'aria-label': 'State' });
  const buttons = [null, ...STATES].map((name) => {
    const button = h('button', { type: 'button', class: 'small', onclick: () => { state = name; store(); } }, name ?? 'all');
    return { name, button };
  });
  fill(filters, buttons.map(({ button }) => button));
  const controls = h('div', { class: 'controls', hidden: true }, filters, search);
  const list = h('div', {}, h('p', { class: 'loading' }, 'Loading'));
  const button = h('button', { type: 'button', hidden: true, onclick: () => { more = !more; draw(); } });
  fill(content, h('h1', { tabindex: -1 }, 'Jobs'), figures, controls, list, button);
  /** @type {any} */ let view = null;
  const sorting = new Sorting(() => draw());

  function store() {
    const query = queryOf(location.hash);
    for (const [name, value] of [['state', state], ['find', search.value.trim()]]) value ? query.set(name ?? '', value) : query.delete(name ?? '');
    setQuery(query);
    draw();
  }

  const draw = () => {
    if (!view) return;
    const { jobs, nodes, now_unix_ms: now } = view;
    const of = (/** @type {string} */ name) => jobs.filter((/** @type {any} */ job) => job.state === name);
    const running = of('running');
    const sum = (/** @type {any[]} */ some, /** @type {(job: any) => number | undefined} */ value) => some.reduce((total, job) => total + (value(job) ?? 0), 0);
    const saved = sum(jobs, (job) => job.time_saved?.seconds);
    fill(figures, [
      ['Active jobs', count(running.length), `of ${count(jobs.length)}`],
      ['Live workers', count(sum(jobs, (job) => job.live_workers)), ''],
      ['Slow workers', count(sum(jobs, (job) => job.slow_workers)), ''],
      ['Stalled or failed', count(of('stalled').length + of('failed').length), ''],
      ['Time saved', jobs.some((/** @type {any} */ job) => job.time_saved) ? `${saved < 0 ? '−' : ''}${seconds(Math.abs(saved))}` : NONE, 'all jobs, compared with even shares'],
      ['Nodes in the last day', count(nodes.length), ''],
    ].map(([name, value, note]) => h('div', {}, h('dt', {}, name), h('dd', {}, value), h('dd', { class: 'note' }, note))));
    controls.hidden = jobs.length < 2;
    if (!jobs.length) return fill(list, welcome());
    for (const { name, button: filter } of buttons) {
      const number = name ? of(name).length : jobs.length;
      say(filter, `${name ?? 'all'} ${count(number)}`);
      filter.hidden = name != null && !number && state !== name;
      set(filter, 'aria-pressed', String(state === name));
    }
    const wanted = search.value.trim().toLowerCase();
    const found = jobs
      .filter((/** @type {any} */ job) => (!state || job.state === state) && job.job_id.toLowerCase().includes(wanted));
    sorting.apply(found, VALUES, (/** @type {any} */ a, /** @type {any} */ b) => trouble(b, now) - trouble(a, now) || activity(b) - activity(a) || (a.job_id < b.job_id ? -1 : 1));
    const shown = more ? found : found.slice(0, ROWS);
    button.hidden = found.length <= ROWS;
    say(button, more ? `Show the first ${ROWS}` : `Show all ${plural(found.length, 'job')}`);
    if (!found.length) return fill(list, h('p', { class: 'empty' }, 'No job matches.'));
    // Rows keep their elements while the order is unchanged, so that the focus stays; only their values change.
    const ids = shown.map((/** @type {any} */ job) => `${job.job_id}\n${job.url ?? ''}`).join('\n\n');
    if (list.dataset.ids !== ids) {
      const active = /** @type {HTMLElement | null} */ (document.activeElement);
      const focused = active?.getAttribute('href') ?? (active?.matches('.sort') ? active.textContent : null);
      list.dataset.ids = ids;
      fill(list, h('div', { class: 'card' }, jobsTable(shown, now, undefined, sorting)));
      if (focused) /** @type {HTMLElement | undefined} */ ([...list.querySelectorAll('a, .sort')].find((link) => (link.getAttribute('href') ?? link.textContent) === focused))?.focus();
    } else shown.forEach((/** @type {any} */ job, /** @type {number} */ index) => update(list.querySelectorAll('tbody tr')[index], job, now));
  };
  const stream = listen('v1/live', {
    eventsOnly: true,
    onEvent: (name, data) => {
      if (name !== 'jobs') return;
      view = data;
      nextFrame(draw);
    },
    onState: (state) => {
      show(state, () => stream.retry());
      if (state.kind === 'refused') fill(list, h('p', { class: 'empty' }, state.why.message));
    },
  }, signal);
}

/** Time by which jobs are sorted: running jobs first reported, by creation, so that their order is steady. @param {any} job */
const activity = (job) => (['running', 'starting'].includes(job.state) ? 1e15 + (job.created_unix_ms ?? 0) : (job.at_unix_ms ?? job.created_unix_ms ?? 0));

/** How bad the state of a job is: it failed or stalled in the last day, or it has slow workers. @param {any} job @param {number} now */
function trouble({ state, state_since_unix_ms: since, slow_workers: slow }, now) {
  if (['failed', 'stalled', 'unreadable'].includes(state)) return since == null || now - since < TROUBLE_MS ? 2 : 0;
  return state === 'running' && slow > 0 ? 1 : 0;
}

/** Values by which columns are sorted. @type {((job: any) => any)[]} */
const VALUES = [(job) => job.job_id, (job) => STATES.indexOf(job.state), (job) => job.at_unix_ms, (job) => job.live_workers, (job) => job.step_time_s, (job) => job.samples_per_s, (job) => job.gain?.ratio, (job) => job.waiting_share, (job) => job.error_ratio];

/** A table of jobs. @param {any[]} jobs @param {number} now @param {string} [here] the job of this page @param {Sorting} [sorting] */
export function jobsTable(jobs, now, here, sorting) {
  const body = h('tbody', {}, jobs.map((job) => {
    const link = `#/jobs/${encodeURIComponent(job.job_id)}`;
    const address = job.url ? `${job.url.replace(/\/$/, '')}/${link}` : link;
    const name = job.job_id === here ? h('b', {}, job.job_id) : h('a', { href: address }, job.job_id);
    const row = h('tr', { class: 'job' }, h('th', { scope: 'row' }, name), h('td', {}, h('span', { class: 'pill' })), SHORT.map((title) => h('td', { class: 'number', 'data-title': title })));
    update(row, job, now);
    return row;
  }));
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table of jobs' },
    h('table', { class: 'jobs' }, h('thead', {}, h('tr', {}, sorting ? sorting.heads(COLUMNS, (index) => index > 1) : COLUMNS.map((name, index) => h('th', { scope: 'col', class: index > 1 ? 'number' : null }, name)))), body));
}

/** @param {Element} row @param {any} job @param {number} now */
function update(row, job, now) {
  const pill = /** @type {HTMLElement} */ (row.children[1].firstElementChild);
  pill.dataset.state = job.state ?? 'elsewhere';
  say(pill, stateWords(job, now));
  set(pill, 'title', job.state_reason ?? (job.url ? `Served by ${job.url}; follow the link to its page.` : null));
  const slow = job.slow_workers ? ` (${count(job.slow_workers)} slow)` : '';
  const values = [job.at_unix_ms == null ? NONE : ago(job.at_unix_ms, now), `${count(job.live_workers)}${slow}`, seconds(job.step_time_s), job.samples_per_s == null || job.state !== 'running' ? NONE : amount(job.samples_per_s, `${job.unit}/s`), gainWords(job.gain), percent(job.waiting_share), percent(job.error_ratio)];
  values.forEach((value, index) => say(row.children[index + 2], value));
}

function welcome() {
  const origin = location.origin + location.pathname.replace(/\/$/, '');
  return h('div', { class: 'card welcome' },
    h('h2', {}, 'No job yet'),
    h('p', {}, 'A job appears here as soon as a training loop creates it. To start with PyTorch, change three lines of a script with DistributedDataParallel:'),
    copied('job = evenstep.init()\nloader = job.loader(dataset, global_batch=256)\nmodel = job.wrap(DistributedDataParallel(net))'),
    h('p', {}, 'Its ranks find this predictor by its address:'),
    copied(`EVENSTEP_SERVER=${origin} torchrun --nproc-per-node 4 train.py`),
    h('p', {}, 'Without a script, a demo on one machine:'),
    copied(`EVENSTEP_SERVER=${origin} evenstep demo`),
    h('p', { class: 'soft' }, 'For other training loops, in any language: ', h('a', { href: 'docs/' }, 'the HTTP API'), '.'));
}

/** Text with a button that copies it. @param {string} text */
function copied(text) {
  const button = h('button', { type: 'button', class: 'small', onclick: () => navigator.clipboard?.writeText(text).then(() => say(button, 'Copied'), () => say(button, 'Select the text to copy it')) }, 'Copy');
  return h('div', { class: 'copied' }, h('pre', { tabindex: 0 }, text), navigator.clipboard && button);
}
