/** The header of a job's page: name, statistics, and the reason of the latest decision. */

import { h, say } from '../charts/dom.js';
import { count, NONE, number, percent, plural, seconds, speed } from '../charts/format.js';

/** Number of iterations over which means are taken. */
const LATEST = 64;

/** @type {Record<string, string>} */
const KINDS = { cold_start: 'Cold start', profiling: 'Profiling', rebalanced: 'Shares changed', held: 'Shares kept' };

/** Name and tooltip of each value. */
const FIGURES = [
  ['Step time', 'Mean of the latest iterations.'],
  ['Against even shares', 'Predicted step time with even shares, over the predicted step time of the allocation.'],
  ['Throughput', 'Samples of all workers over the step time.'],
  ['Barrier wait', 'Share of the workers’ time spent waiting for the slowest.'],
  ['Forecast error', 'Mean relative distance of actual from predicted speed.'],
  ['Iteration', 'The latest reported iteration.'],
];

/** @param {string} id */
export function summary(id) {
  const pill = h('span', { class: 'pill' });
  const about = h('p', { class: 'lead' });
  const values = FIGURES.map(() => h('dd', {}, NONE));
  const kind = h('b', {});
  const why = h('span', {});
  const decision = h('p', { class: 'decision', hidden: true }, kind, why);
  const root = h('header', { class: 'summary' },
    h('p', { class: 'crumbs' }, h('a', { href: '#/' }, 'Jobs'), ' /'),
    h('div', { class: 'head' }, h('h1', { tabindex: -1 }, id), pill), about,
    h('dl', { class: 'figures' }, FIGURES.map(([name, title], index) => h('div', { title }, h('dt', {}, name), values[index]))), decision);
  return {
    root,
    /** @param {any} view the service's view of the job */
    replace(view) {
      pill.dataset.state = view.state;
      say(pill, view.state === 'paused' ? 'paused: too few workers' : 'running');
      const tail = view.hedge?.tail_share >= 0.005 ? `, ${percent(view.hedge.tail_share, 0)} of them in the shared tail` : '';
      say(about, `${plural(view.live_workers, 'worker')} share ${plural(view.global_batch, 'sample')} in each iteration${tail}. Generation ${view.generation}.`);
      if (view.last_decision) told(view.last_decision.kind, view.last_decision.reason);
    },
    /** @param {import('./history.js').History} history */
    draw(history) {
      const { step, workers, latest, iterations } = history;
      const mean = (/** @type {(number | null)[]} */ column) => {
        const known = column.slice(-LATEST).filter((value) => value != null);
        return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
      };
      const took = mean(step.step_time_s);
      const [expected, even] = [mean(step.predicted_step_time_s), mean(step.even_step_time_s)];
      const all = [...workers.values()];
      const live = all.filter((columns) => columns.local_batch.at(-1) != null);
      const waited = live.length && took ? live.reduce((sum, columns) => sum + (mean(columns.barrier_wait_s) ?? 0), 0) / live.length / took : null;
      const off = missed(live);
      const batch = latest?.global_batch ?? live.reduce((sum, columns) => sum + (columns.local_batch.at(-1) ?? 0), 0);
      const gain = expected && even ? even / expected : null;
      [
        seconds(took),
        gain == null ? NONE : gain >= 1.005 ? `${number(gain)}× faster` : 'equal',
        took && batch ? speed(batch / took) : NONE,
        percent(waited),
        percent(off),
        count(latest?.iteration ?? iterations[history.reported]),
      ].forEach((value, index) => say(values[index], value));
      if (latest) told(latest.decision, latest.reason);
    },
  };
  /** @param {string} of @param {string} reason */
  function told(of, reason) {
    decision.hidden = false;
    say(kind, `${KINDS[of] ?? of}. `);
    say(why, reason);
  }
}

/** Mean relative distance of actual from predicted speed in the latest iterations; null before the first. @param {any[]} workers */
function missed(workers) {
  let [sum, points] = [0, 0];
  for (const { actual_samples_per_s: actual, predicted_samples_per_s: predicted } of workers) {
    for (let index = Math.max(0, actual.length - LATEST); index < actual.length; index++) {
      if (actual[index] == null || !predicted[index]) continue;
      sum += Math.abs(actual[index] / predicted[index] - 1);
      points++;
    }
  }
  return points ? sum / points : null;
}
