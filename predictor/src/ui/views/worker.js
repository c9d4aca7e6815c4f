/** The page of a worker: its speed, its forecast and the readings of its node on one time axis. */

import { ofJob, read, Refused } from '../api.js';
import { show } from '../connection.js';
import { fill, h, say } from '../charts/dom.js';
import { count, moment, percent, seconds, speed } from '../charts/format.js';
import { nextFrame } from '../charts/frame.js';
import { speedOf } from '../job/charts.js';
import { Chosen } from '../job/chosen.js';
import { History, POINTS } from '../job/history.js';
import { Range } from '../job/range.js';
import { nodeOf, SLOW, STATES } from '../job/workers.js';
import { readings } from '../readings.js';
import { listen } from '../stream.js';

/** Readings that explain a slow worker, by the titles of their charts. */
const READINGS = ['Processors', 'Pressure', 'Limits of processes', 'GPUs: busy', 'GPUs: clock', 'GPUs: temperature', 'GPUs: power'];
/** Limit of samples in the first request: one hour at one sample per second. */
const SAMPLES = 3600;

/** @type {import('../main.js').View} */
export function workerPage(content, id, signal, worker) {
  const node = nodeOf(worker);
  const chosen = new Chosen(() => {}, [worker]);
  const range = new Range(() => void again());
  let history = new History(range.spanS);
  let isRead = false;
  /** When a worker that left was last seen, in milliseconds since 1970. @type {number | null} */ let left = null;
  const span = () => {
    const { at } = history;
    return at.length > 1 ? /** @type {[number, number]} */ ([at[0], at[at.length - 1]]) : null;
  };
  const group = `worker:${id} ${worker}`;
  /** @type {import('../job/charts.js').Job} */
  const job = { id, history: () => history, isRead: () => isRead, chosen, signal, group, unit: () => 'samples', events: () => [], select: range.select };
  const chart = speedOf(job, { title: 'Speed: expected and actual', how: 'Grey: 90 % interval of the expected speed. Colour: minimum to maximum over long ranges.', height: 260, span });
  const pill = h('span', { class: 'pill', hidden: true });
  const about = h('p', { class: 'lead' });
  const said = h('p', { class: 'aside' }, h('a', { href: `#/nodes/${encodeURIComponent(node)}` }, `Node ${node}`), ' ', h('span', {}));
  const trouble = h('p', { class: 'toast trouble', role: 'alert' });
  const below = h('div', { class: 'stack' });
  fill(content, h('p', { class: 'crumbs' }, h('a', { href: '#/' }, 'Jobs'), ' / ', h('a', { href: `#/jobs/${encodeURIComponent(id)}` }, id), ' /'),
    h('div', { class: 'head start' }, h('h1', { tabindex: -1 }, worker), pill), about, said, trouble, h('div', { class: 'controls' }, range.root), chart.root, below);

  const draw = () => {
    chart.show(worker);
    const last = (/** @type {(typeof import('../job/history.js').COLUMNS)[number]} */ name) => history.last(worker, name, left == null ? undefined : Infinity);
    if (history.workers.has(worker)) say(/** @type {Element} */ (said.lastElementChild), `${left == null ? '' : `Last seen ${moment(left)}. `}Batch ${count(last('local_batch'))}, speed ${speed(last('actual_samples_per_s'))} of expected ${speed(last('predicted_samples_per_s'))}, compute time ${seconds(last('compute_time_s'))}, waited ${seconds(last('barrier_wait_s'))}. Forecast error ${percent(history.error(worker))} in this time range.`);
  };
  async function again() {
    try {
      const [view, { workers }] = await Promise.all([read(ofJob(id), signal), read(ofJob(id, '/workers'), signal)]);
      const known = workers.find((/** @type {any} */ one) => one.worker === worker);
      if (!known) {
        chart.show(undefined);
        return say(about, 'This job has no such worker.');
      }
      left = known.state === 'live' ? null : known.last_seen_unix_ms;
      const { straggler } = known;
      pill.hidden = false;
      pill.dataset.state = straggler ? 'silent' : known.state === 'live' ? 'running' : known.state;
      say(pill, straggler ? SLOW[straggler.reason] ?? straggler.reason : STATES[known.state] ?? known.state);
      say(about, `${known.device ?? ''}${straggler ? `${known.device ? '. ' : ''}At ${percent(straggler.speed_ratio, 0)} of its usual speed since iteration ${count(straggler.since_iteration)}: ${straggler.detail}` : ''}`);
      const ended = left ?? (['finished', 'failed', 'stalled'].includes(view.state) ? view.state_since_unix_ms : null);
      history = History.of(await read(ofJob(id, `/history?${range.query(ended)}&points=${POINTS}`), signal), range.spanS);
      isRead = true;
      say(trouble, '');
      nextFrame(draw);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Refused)) throw error;
      unread(error);
    } finally {
      begin();
    }
  }
  /** @param {Refused} why */
  function unread(why) {
    say(trouble, why.message);
    if (!isRead) chart.show(undefined);
  }
  let areRead = false;
  /** Reads the readings when the time axis is known. */
  function begin() {
    if (areRead || signal.aborted) return;
    areRead = true;
    const none = h('p', { class: 'card empty' }, `No agent has sent readings of ${node}.`);
    readings(node, below, { group, span, only: READINGS, first: SAMPLES }, signal, (_, __, latest) => (latest ? none.remove() : below.append(none)), (error) => fill(below, h('p', { class: 'card empty' }, error.message)));
  }
  const stream = listen(ofJob(id, '/live'), {
    onOpen: () => void again(),
    onEvent: (name, data) => {
      if (name === 'changed') void again();
      if (name !== 'step' || !range.isLive || !isRead || left != null) return;
      history.append(data);
      nextFrame(draw);
    },
    onState: (state) => {
      show(state, () => stream.retry());
      if (state.kind === 'refused') unread(state.why);
    },
  }, signal);
}
