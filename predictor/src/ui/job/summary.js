/** The header of a job's page: name and state, the service's verdict in words and its values. */

import { h, say } from '../charts/dom.js';
import { ago, amount, count, moment, NONE, percent, plural, seconds } from '../charts/format.js';

/** Forecast error from which it is marked. */
const ERROR_MAX = 0.15;

/** Name and tooltip of each value. */
const FIGURES = [
  ['Gain', 'Time with even shares over the measured time, over the whole job. An estimate with its 90 % interval.'],
  ['Time lost waiting', 'Share of the step times that workers waited for the slowest one, over the whole job.'],
  ['Slow workers', 'Workers that are slower than they were, or than others on the same kind of GPU.'],
  ['Forecast error', 'Mean relative distance of actual from expected speed, over the latest 64 iterations.'],
  ['Step time', 'Mean of the latest 64 iterations.'],
  ['Throughput', 'Of all workers, over the latest 64 iterations.'],
  ['Iteration', 'The latest reported iteration.'],
];

/** The words of a state, with its time. @param {any} job state, state_since_unix_ms and state_reason @param {number} now */
export function stateWords(job, now) {
  if (!job.state) return 'on another predictor';
  const since = job.state_since_unix_ms;
  return since == null || job.state === 'running' ? job.state : `${job.state} ${ago(since, now)}`;
}

/** A gain in words: `1.69x`. @param {any} gain */
export const gainWords = (gain) => (gain ? times(gain.ratio) : NONE);

/** @param {number} ratio */
const times = (ratio) => `${ratio.toFixed(2)}x`;

/** @param {string} id */
export function summary(id) {
  const pill = h('span', { class: 'pill' });
  const about = h('p', { class: 'lead' });
  const values = FIGURES.map(() => h('span', {}, NONE));
  const notes = FIGURES.map(() => h('span', { class: 'note' }));
  const verdict = h('p', { class: 'verdict', hidden: true });
  const root = h('header', { class: 'summary' },
    h('p', { class: 'crumbs' }, h('a', { href: '#/' }, 'Jobs'), ' /'),
    h('div', { class: 'head' }, h('h1', { tabindex: -1 }, id), pill, about), verdict,
    h('dl', { class: 'figures' }, FIGURES.map(([name, title], index) => h('div', { title }, h('dt', {}, name), h('dd', {}, values[index]), h('dd', { class: 'note' }, notes[index])))));
  /** @type {any} */ let view = null;
  /** @type {any} */ let line = null;
  const describe = () => {
    if (!view) return;
    const unit = view.spec.unit ?? 'samples';
    const tail = view.hedge?.tail_share >= 0.005 ? `, ${percent(view.hedge.tail_share, 0)} of them claimed on demand` : '';
    const state = line ?? view;
    const reason = state.state === 'running' || !state.state_reason ? '' : ` ${state.state_reason[0].toUpperCase()}${state.state_reason.slice(1)}${state.state_since_unix_ms ? ` (${moment(state.state_since_unix_ms)})` : ''}.`;
    const who = view.live_workers ? `${plural(view.live_workers, 'worker')} share ` : '';
    say(about, `${who}${count(view.global_batch)} ${unit} in each iteration${tail}.${reason}`);
    pill.dataset.state = state.state;
    say(pill, stateWords(state, Date.now()));
  };
  return {
    root,
    /** @param {any} told the service's view of the job */
    replace(told) {
      view = told;
      describe();
    },
    /** @param {any} told the service's summary of the job @param {import('./history.js').History} history */
    draw(told, history) {
      if (told) {
        line = told;
        describe();
        const { gain, time_saved: saved } = told;
        say(verdict, told.verdict ?? '');
        verdict.hidden = !told.verdict;
        const rows = [
          [gainWords(gain), gain ? `${times(gain.lower)} to ${times(gain.upper)}; ${seconds(Math.abs(saved.seconds))} ${saved.seconds < 0 ? 'lost' : 'saved'}` : 'known after 8 iterations'],
          [percent(told.waiting_share), told.time_lost_s == null ? '' : `${seconds(told.time_lost_s)} so far`],
          [told.slow_workers ? count(told.slow_workers) : 'none', told.slow_workers || told.state !== 'running' ? '' : bottleneck(history)],
          [percent(told.error_ratio), told.error_ratio == null ? '' : told.error_ratio > ERROR_MAX ? 'high: shares follow late' : ''],
          [seconds(told.step_time_s), ''],
          told.state === 'running' || told.state === 'starting' ? [amount(told.samples_per_s, ''), `${told.unit} per second`] : [NONE, 'no iterations now'],
          [count(history.latest?.iteration ?? told.iteration), [told.attempt > 1 ? `attempt ${told.attempt}` : '', told.at_unix_ms ? ago(told.at_unix_ms, Date.now()) : ''].filter(Boolean).join(', ')],
        ];
        rows.forEach(([value, note], index) => {
          say(values[index], value);
          say(notes[index], note);
        });
        values[2].dataset.state = told.slow_workers ? 'slow' : '';
      }
    },
  };
}

/** The worker that the others wait for. @param {import('./history.js').History} history */
function bottleneck(history) {
  const workers = history.latest?.workers ?? [];
  const last = workers.reduce((/** @type {any} */ most, /** @type {any} */ worker) => ((worker.compute_time_s ?? 0) > (most?.compute_time_s ?? 0) ? worker : most), null);
  return last && workers.length > 1 ? `bottleneck now: ${last.worker}` : '';
}
