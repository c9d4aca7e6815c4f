/** The charts of a job. Each has a description of how to read it. */

import { figure, ROWS_MAX } from '../charts/figure.js';
import { FinishBars } from './finish.js';
import { LineChart } from '../charts/line.js';
import { clock, number, percent, seconds, speed } from '../charts/format.js';
import { whileVisible } from '../charts/frame.js';
import { DASHED, DOTTED } from '../palette.js';

/** @typedef {import('./history.js').History} History */
/** @typedef {import('./chosen.js').Chosen} Chosen */
/** @typedef {import('../charts/line.js').Line} Line */
/** @typedef {import('../charts/line.js').Band} Band */
/** @typedef {(number | null)[]} Column */
/** @typedef {{ root: HTMLElement, draw: (atOnce?: boolean) => void }} Chart */
/** @typedef {{ history: () => History, chosen: Chosen, signal: AbortSignal, group: string }} Job */

/** Shortest interval between two drawings of a chart over time, in milliseconds. One iteration is less than a pixel
 * wide.
 */
const REDRAW_MS = 1000;
const NO_STEP = 'No iteration has been reported yet.';

/** Predicted and actual speed. @param {Job} job @returns {Chart} */
export function speeds(job) {
  return overTime(job, {
    title: 'Speed of each worker: predicted and actual',
    how: 'Solid: actual speed. Dashed: predicted speed, with its 90 % interval as a shade. Outside the shade, the forecast error is larger than expected.',
    wide: true,
    format: speed,
    lines(history, worker, mark) {
      const columns = history.workers.get(worker);
      if (!columns) return null;
      return {
        lines: [
          { label: `${worker} upper`, colour: mark.colour, edge: true },
          { label: `${worker} lower`, colour: mark.colour, edge: true },
          { label: `${worker}, predicted`, colour: mark.colour, dash: DASHED, width: 1.5 },
          { label: worker, colour: mark.colour, width: 2, letter: mark.letter },
        ],
        bands: [[0, 1]],
        columns: [columns.upper_samples_per_s, columns.lower_samples_per_s, columns.predicted_samples_per_s, columns.actual_samples_per_s],
        said: [{ label: worker, of: 3 }],
      };
    },
    others: true,
    keys: [
      { label: 'actual', line: 'solid', colour: '--soft' },
      { label: 'predicted', line: 'dashed', colour: '--soft' },
    ],
  });
}

/** Barrier wait of each worker. @param {Job} job @returns {Chart} */
export function waits(job) {
  return overTime(job, {
    title: 'Barrier wait',
    how: 'Time that each worker waits at the barrier for the slowest, as a moving mean. This time is lost: lower is better.',
    format: seconds,
    zero: true,
    lines(history, worker, mark) {
      const columns = history.workers.get(worker);
      if (!columns) return null;
      return { lines: [{ label: worker, colour: mark.colour, letter: mark.letter, width: 1.75 }], bands: [], columns: [smooth(columns.barrier_wait_s)], said: [{ label: worker, of: 0 }] };
    },
    others: false,
    keys: [],
  });
}

/** Number of independent means across a smoothed chart. */
const MEANS = 30;

/** A moving mean. The worker that waits changes with every iteration; the wait in the long run matters. @param {Column} column @returns {Column} */
function smooth(column) {
  const width = Math.max(1, Math.round(column.length / MEANS));
  let sum = 0;
  let known = 0;
  return column.map((value, index) => {
    const leaves = column[index - width] ?? null;
    if (value != null) [sum, known] = [sum + value, known + 1];
    if (leaves != null) [sum, known] = [sum - leaves, known - 1];
    return known && value != null ? sum / known : null;
  });
}

/**
 * A chart with lines for each shown worker, above the grey range of all workers.
 * @param {Job} job
 * @param {{ title: string, how: string, wide?: boolean, zero?: boolean, format: (value: number) => string,
 *   lines: (history: History, worker: string, mark: import('../palette.js').Mark) => { lines: Line[], bands: [number, number][], columns: Column[], said: { label: string, of: number }[] } | null,
 *   others: boolean, keys: import('../charts/figure.js').LegendEntry[] }} what
 * @returns {Chart}
 */
function overTime(job, what) {
  const frame = figure({ title: what.title, how: what.how, wide: what.wide, table: () => behind() });
  /** @type {{ label: string, mark: import('../palette.js').Mark, values: Column }[]} */
  let shown = [];
  const chart = new LineChart(frame.plot, { name: what.title, format: what.format, zero: what.zero, group: job.group, onPoint: (index) => legend(index) }, job.signal);

  /** @param {number | null} index */
  function legend(index) {
    const all = what.others && job.history().workers.size > shown.length;
    frame.legend([
      ...shown.map(({ label, mark, values }) => ({ label, colour: mark.colour, letter: mark.letter, value: index == null ? '' : what.format(values[index] ?? NaN) })),
      ...what.keys,
      ...(all ? [/** @type {const} */ ({ label: 'all workers, slowest to fastest', line: 'area', colour: '--other' })] : []),
    ]);
  }
  function behind() {
    const { at, iterations } = job.history();
    const rows = at.slice(-ROWS_MAX).map((time, index) => {
      const place = Math.max(0, at.length - ROWS_MAX) + index;
      return [`${iterations[place]} (${clock(time * 1000)})`, ...shown.map(({ values }) => what.format(values[place] ?? NaN))];
    });
    return { head: ['Iteration', ...shown.map(({ label }) => label)], rows: rows.reverse(), note: `The latest ${rows.length} of the iterations shown, newest first.` };
  }
  const draw = whileVisible(frame.root, () => {
    const history = job.history();
    frame.nothing(history.at.length ? null : NO_STEP);
    if (!history.at.length) return;
    /** @type {Line[]} */ const lines = [];
    /** @type {Band[]} */ const bands = [];
    /** @type {Column[]} */ const columns = [];
    shown = [];
    if (what.others && history.workers.size > job.chosen.workers.length) {
      lines.push({ label: 'highest of all', colour: '--other', width: 0.5 }, { label: 'lowest of all', colour: '--other', width: 0.5 });
      columns.push(history.all.fastest, history.all.slowest);
      bands.push({ between: [0, 1], colour: '--other' });
    }
    for (const worker of job.chosen.workers) {
      const mark = job.chosen.mark(worker);
      const part = mark && what.lines(history, worker, mark);
      if (!mark || !part) continue;
      const from = lines.length;
      lines.push(...part.lines);
      columns.push(...part.columns);
      bands.push(...part.bands.map(([upper, lower]) => ({ between: /** @type {[number, number]} */ ([from + upper, from + lower]), colour: mark.colour })));
      shown.push(...part.said.map(({ label, of }) => ({ label, mark, values: part.columns[of] })));
    }
    legend(null);
    chart.show(lines, bands, history.at, columns);
  }, REDRAW_MS);
  return { root: frame.root, draw };
}

/** Step time, compared with the predicted time with even shares. @param {Job} job @returns {Chart} */
export function stepTimes(job) {
  const title = 'Step time';
  const how = 'Solid: actual. Dashed: predicted. Dotted: predicted with even shares. The gap below the dotted line is the time that uneven shares save.';
  /** @type {[('step_time_s' | 'predicted_step_time_s' | 'even_step_time_s'), string, string, 'solid' | 'dashed' | 'dotted', number[] | undefined][]} */
  const kinds = [
    ['even_step_time_s', 'even shares, expected', '--c1', 'dotted', DOTTED],
    ['predicted_step_time_s', 'expected', '--c0', 'dashed', DASHED],
    ['step_time_s', 'actual', '--c0', 'solid', undefined],
  ];
  const table = () => {
    const { at, iterations, step } = job.history();
    const first = Math.max(0, at.length - ROWS_MAX);
    const rows = at.slice(first).map((_, index) => [`${iterations[first + index]} (${clock(at[first + index] * 1000)})`, ...kinds.map(([name]) => seconds(step[name][first + index]))]);
    return { head: ['Iteration', ...kinds.map(([, label]) => label)], rows: rows.reverse(), note: `The latest ${rows.length} of the iterations shown, newest first.` };
  };
  const frame = figure({ title, how, table });
  const legend = (/** @type {number | null} */ index) =>
    frame.legend(kinds.map(([name, label, colour, line]) => ({ label, colour, line, value: index == null ? '' : seconds(job.history().step[name][index]) })));
  const chart = new LineChart(frame.plot, { name: title, format: seconds, group: job.group, onPoint: legend }, job.signal);
  const draw = whileVisible(frame.root, () => {
    const { at, step } = job.history();
    frame.nothing(at.length ? null : NO_STEP);
    if (!at.length) return;
    legend(null);
    chart.show(kinds.map(([, label, colour, , dash]) => ({ label, colour, dash, width: dash ? 1.75 : 2 })), [], at, kinds.map(([name]) => step[name]));
  }, REDRAW_MS);
  return { root: frame.root, draw };
}

/** Share of the batch below which the shown workers are drawn without the others. */
const WHOLE_FROM = 0.3;

/** Share of the batch of each worker. @param {Job} job @returns {Chart} */
export function shares(job) {
  const title = 'Shares of the batch';
  const how = 'Each colour is the share of one worker, stacked. Even shares are stripes of the same height; each step up or down is a reallocation.';
  const frame = figure({ title, how, table: () => behind() });
  const shown = () => job.chosen.workers.filter((worker) => job.history().workers.has(worker));
  /** @type {Column[]} */ let parts = [];
  let others = false;
  /** Whether the whole batch is drawn, or only the shown workers' part. */
  let whole = true;
  const legend = (/** @type {number | null} */ index) => {
    const value = (/** @type {number} */ place) => (index == null ? '' : percent(parts[place]?.[index] ?? NaN));
    frame.legend([
      ...shown().map((worker, place) => ({ label: worker, colour: job.chosen.mark(worker)?.colour, letter: job.chosen.mark(worker)?.letter, value: value(place) })),
      ...(whole && others ? [/** @type {const} */ ({ label: 'all others', line: 'area', colour: '--other', value: '' })] : []),
    ]);
  };
  const chart = new LineChart(frame.plot, { name: title, format: (value) => percent(value, whole ? 0 : 1), zero: true, top: () => (whole ? 1 : undefined), group: job.group, onPoint: legend }, job.signal);

  function behind() {
    const { at, iterations, workers } = job.history();
    const first = Math.max(0, at.length - ROWS_MAX);
    const rows = at.slice(first).map((_, index) => [String(iterations[first + index]), ...shown().map((worker) => number(workers.get(worker)?.local_batch[first + index]))]);
    return { head: ['Iteration', ...shown()], rows: rows.reverse(), note: `Samples per worker in the latest ${rows.length} of the iterations shown, newest first.` };
  }
  const draw = whileVisible(frame.root, () => {
    const { at, workers, all: { batch: totals } } = job.history();
    frame.nothing(at.length ? null : NO_STEP);
    if (!at.length) return;
    parts = shown().map((worker) => (workers.get(worker)?.local_batch ?? []).map((batch, index) => (batch == null || !totals[index] ? null : batch / totals[index])));
    others = workers.size > parts.length;
    // With many workers, the others would fill the whole chart.
    whole = !others || parts.reduce((sum, part) => sum + (part.at(-1) ?? 0), 0) > WHOLE_FROM;
    legend(null);
    // Each area is drawn from the bottom up to the cumulative sum, the highest first. The part that the next area does
    // not cover is the worker's own.
    /** @type {Column[]} */
    const sums = [];
    let sum = totals.map(() => 0);
    for (const part of parts) {
      sum = sum.map((below, index) => below + (part[index] ?? 0));
      sums.push(sum.map((value, index) => (totals[index] ? value : null)));
    }
    const all = totals.map((total) => (total ? 1 : null));
    const lines = shown().map((worker) => ({ label: worker, colour: job.chosen.mark(worker)?.colour ?? '--other', fill: true, width: 0.5, stepped: true }));
    const rest = whole ? [{ label: 'all others', colour: '--other', fill: true, width: 0.5, stepped: true }] : [];
    chart.show([...rest, ...lines.reverse()], [], at, [...rest.map(() => all), ...sums.reverse()]);
  }, REDRAW_MS);
  return { root: frame.root, draw };
}

/** Multiplier of the learning rate. @param {Job} job @returns {Chart & { say: (words: string) => void }} */
export function rate(job) {
  const title = 'Learning rate';
  const how = 'Multiplier of the learning rate that adapts it to the global batch. 1: as scheduled.';
  const table = () => {
    const { at, iterations, step } = job.history();
    const first = Math.max(0, at.length - ROWS_MAX);
    const rows = at.slice(first).map((_, index) => [String(iterations[first + index]), number(step.lr_multiplier[first + index])]);
    return { head: ['Iteration', 'Multiplier'], rows: rows.reverse(), note: `The latest ${rows.length} of the iterations shown, newest first.` };
  };
  const frame = figure({ title, how, table });
  const words = document.createElement('p');
  words.className = 'aside';
  frame.plot.before(words);
  const chart = new LineChart(frame.plot, { name: title, format: (value) => `×${number(value)}`, group: job.group }, job.signal);
  const draw = whileVisible(frame.root, () => {
    const { at, step } = job.history();
    const known = step.lr_multiplier.some((value) => value != null);
    frame.nothing(known ? null : NO_STEP);
    if (known) chart.show([{ label: 'multiplier', colour: '--c2', stepped: true }], [], at, [step.lr_multiplier]);
  }, REDRAW_MS);
  return { root: frame.root, draw, say: (text) => void (words.textContent = text) };
}

/** Finish times in the latest iteration. @param {Job} job @returns {Chart} */
export function finish(job) {
  const title = 'Finish times in the latest iteration';
  const how = 'Bars: compute time of each worker. Ticks: expected finish time. If all bars end together, no worker waits. Dotted line: finish time of the slowest worker with even shares.';
  const workers = () => latest(job.history());
  const frame = figure({
    title,
    how,
    table: () => ({
      head: ['Worker', 'Samples', 'Expected', 'Finished after', 'Waited'],
      rows: workers().map((worker) => [worker.worker, number(worker.local_batch), seconds(worker.predicted_compute_time_s), seconds(worker.compute_time_s), seconds(worker.barrier_wait_s)]),
      note: `Iteration ${job.history().latest?.iteration ?? job.history().iterations[job.history().reported] ?? ''}.`,
    }),
  });
  const bars = new FinishBars(frame.plot);
  const draw = whileVisible(frame.root, () => {
    const { step, reported, latest: live } = job.history();
    const shown = workers();
    frame.nothing(shown.length ? null : NO_STEP);
    if (!shown.length) return;
    frame.legend([
      { label: 'finished after', line: 'area', colour: '--soft' },
      { label: 'expected', line: 'solid', colour: '--ink' },
    ]);
    bars.show(
      shown,
      [
        { at: live ? live.predicted_step_time_s : step.predicted_step_time_s[reported], label: 'expected', kind: 'dashed' },
        { at: live ? live.even_step_time_s : step.even_step_time_s[reported], label: 'even shares', kind: 'dotted' },
      ],
      (worker) => job.chosen.mark(worker),
    );
  });
  return { root: frame.root, draw };
}

/** The workers of the latest iteration, live or from the history. @param {History} history @returns {any[]} */
function latest(history) {
  if (history.latest) return history.latest.workers;
  const last = history.reported;
  return [...history.workers]
    .filter(([, columns]) => columns.local_batch[last] != null)
    .map(([worker, columns]) => {
      const [batch, predicted] = [columns.local_batch[last], columns.predicted_samples_per_s[last]];
      return {
        worker,
        local_batch: batch,
        compute_time_s: columns.compute_time_s[last],
        barrier_wait_s: columns.barrier_wait_s[last],
        predicted_compute_time_s: batch != null && predicted ? batch / predicted : null,
      };
    });
}
