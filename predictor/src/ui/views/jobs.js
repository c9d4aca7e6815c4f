/** The list of all jobs. */

import { fill, h, say } from '../charts/dom.js';
import { ago, count, percent, plural, seconds, speed, NONE } from '../charts/format.js';
import { nextFrame } from '../charts/frame.js';
import { show } from '../connection.js';
import { listen } from '../stream.js';

/** Time without a report after which a job is shown as quiet, in milliseconds. */
const QUIET_MS = 60_000;

/** @type {import('../main.js').View} */
export function jobsPage(content, _name, signal) {
  const figures = h('dl', { class: 'figures' });
  const list = h('div', { class: 'jobs' });
  fill(content,
    h('h1', { tabindex: -1 }, 'Jobs'),
    h('p', { class: 'lead' }, 'A job is one training run. Each worker gets the number of samples with which all workers finish at the same time, so that none waits.'),
    figures, list);
  fill(list, h('p', { class: 'loading' }, 'Loading'));
  /** @type {any} */ let view = null;
  const draw = () => {
    if (!view) return;
    const live = view.jobs.reduce((/** @type {number} */ sum, /** @type {any} */ job) => sum + job.live_workers, 0);
    const rate = view.jobs.reduce((/** @type {number} */ sum, /** @type {any} */ job) => sum + (active(job, view.now_unix_ms) ? (job.samples_per_s ?? 0) : 0), 0);
    fill(figures, [['Jobs', count(view.jobs.length)], ['Live workers', count(live)], ['Samples per second', rate ? speed(rate) : NONE], ['Nodes in the last day', count(view.nodes.length)]].map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));
    if (!view.jobs.length) return fill(list, welcome());
    // Cards keep their order and elements while the list of jobs is unchanged, so that the focus stays; only their
    // values change.
    const ids = view.jobs.map((/** @type {any} */ job) => `${job.job_id}\n${job.url ?? ''}`).join('\n\n');
    if (list.dataset.ids !== ids) {
      list.dataset.ids = ids;
      fill(list, view.jobs.map(card));
    }
    view.jobs.forEach((/** @type {any} */ job, /** @type {number} */ index) => update(list.children[index], job, view.now_unix_ms));
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

/** @param {any} job @param {number} now */
const active = (job, now) => job.at_unix_ms != null && now - job.at_unix_ms < QUIET_MS;

/** @param {any} job */
function card(job) {
  const here = `#/jobs/${encodeURIComponent(job.job_id)}`;
  const away = job.url && `${job.url.replace(/\/$/, '')}/${here}`;
  return h('article', { class: 'card job' },
    h('div', { class: 'head' }, h('h2', {}, h('a', { href: away || here }, job.job_id)), h('span', { class: 'pill' })),
    h('dl', { class: 'facts' }, ['Workers', 'Iteration', 'Step time', 'Throughput', 'Waiting', 'Forecast error'].map((name) => h('div', {}, h('dt', {}, name), h('dd', {})))),
    h('p', { class: 'why' }));
}

/** @param {Element} element @param {any} job @param {number} now */
function update(element, job, now) {
  const [head, facts, why] = element.children;
  const pill = /** @type {HTMLElement} */ (head.lastElementChild);
  const state = job.url ? 'elsewhere' : job.state === 'paused' ? 'paused' : active(job, now) ? 'running' : 'still';
  /** @type {Record<string, string>} */
  const words = { elsewhere: 'on another predictor', paused: 'paused: too few workers', running: 'running', still: job.at_unix_ms == null ? 'not started' : `quiet, last ${ago(job.at_unix_ms, now)}` };
  pill.dataset.state = state;
  say(pill, words[state]);
  const values = [count(job.live_workers), count(job.iteration), seconds(job.step_time_s), job.samples_per_s == null ? NONE : speed(job.samples_per_s), percent(job.waiting_share), percent(job.error_ratio)];
  values.forEach((value, index) => say(/** @type {Element} */ (facts.children[index].lastElementChild), value));
  say(why, job.reason ?? (job.url ? `Served by ${job.url}; follow the link to its page.` : job.live_workers ? 'No iteration has been reported yet.' : 'No worker has joined.'));
}

function welcome() {
  const origin = location.origin;
  return h('div', { class: 'card welcome' },
    h('h2', {}, 'No job yet'),
    h('p', {}, 'A job appears here as soon as a training loop creates it. To start one with evenstep-trainer:'),
    h('pre', { tabindex: 0 }, `evenstep-trainer launch --workers 4 --server ${origin}`),
    h('p', {}, 'To create one from your own training loop, in any language:'),
    h('pre', { tabindex: 0 }, `json='content-type: application/json'\ncurl -X PUT  -H "$json" ${origin}/v1/jobs/my-job -d '{"global_batch": 512}'\ncurl -X POST -H "$json" ${origin}/v1/jobs/my-job/workers -d '{"worker": "node-a/0"}'`),
    h('p', { class: 'soft' }, plural(0, 'job'), '. ', h('a', { href: 'docs/' }, 'The whole API'), '.'));
}
