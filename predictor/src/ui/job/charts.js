/** The charts of a job. Each has a description of how to read it. */

import { fill, h } from '../charts/dom.js';
import { figure, ROWS_MAX } from '../charts/figure.js';
import { FinishBars } from './finish.js';
import { LineChart } from '../charts/line.js';
import { clock, count, number, percent, seconds, speed } from '../charts/format.js';
import { whileVisible } from '../charts/frame.js';
import { DASHED, DOTTED, SHOWN_MAX } from '../palette.js';
import { badge } from './picker.js';
import { workerLink } from './workers.js';

/** @typedef {import('./history.js').History} History */
/** @typedef {import('./chosen.js').Chosen} Chosen */
/** @typedef {import('../charts/line.js').Line} Line */
/** @typedef {import('../charts/line.js').Band} Band */
/** @typedef {(number | null | undefined)[]} Column */
/** @typedef {import('../charts/figure.js').LegendEntry} LegendEntry */
/** @typedef {{ root: HTMLElement, draw: (atOnce?: boolean) => void }} Chart */
/** @typedef {{ id: string, history: () => History, isRead: () => boolean, chosen: Chosen, signal: AbortSignal, group: string, unit: () => string, events: () => import('../charts/line.js').Event[], select: (from: number, until: number) => void }} Job */

/** Shortest interval between two drawings of a chart over time, in milliseconds. One iteration is less than a pixel
 * wide.
 */
const REDRAW_MS = 1000;
/** Width of a bin in pixels: the width of a line. */
const BIN_PX = 2;
const NO_STEP = 'No iteration in this time range.';

/** A chart over time. `parts` returns its lines, and the legend's text for each. @param {Job} job
 * @param {{ title: string | Node, name?: string, how?: string, zero?: boolean, ends?: boolean, height?: number, span?: () => [number, number] | null, top?: () => number | undefined, format: (value: number) => string,
 *   parts: (history: History, bins: import('./bins.js').Bins) => Part[], keys?: () => LegendEntry[], head: () => string[] }} what
 * @returns {Chart & { plot: HTMLElement }}
 */
function overTime(job, what) {
  const frame = figure({ title: what.title, how: what.how, heading: what.name ? 'h3' : 'h2', table: () => behind() });
  /** @type {Part[]} */ let parts = [];
  const width = () => Math.max(120, Math.floor((frame.plot.clientWidth || 600) / BIN_PX));
  const chart = new LineChart(frame.plot, { name: what.name ?? String(what.title), format: what.format, zero: what.zero, top: what.top, ends: what.ends, height: what.height, span: what.span, group: job.group, onPoint: (index) => legend(index), onSelect: job.select }, job.signal);

  /** @param {number | null} index */
  function legend(index) {
    const history = job.history();
    const point = index == null ? -1 : history.bins(width()).point(index);
    const here = point < 0 ? '' : `${clock(history.at[point] * 1000)}, iteration ${count(history.iterations[point])}`;
    frame.legend([
      ...parts.filter(({ say }) => say).map(({ say, values }) => ({ ...say, label: say?.label ?? '', value: values.map((column) => what.format((index == null ? column.findLast((value) => value != null) : column[index]) ?? NaN)).join(' / ') })),
      ...(what.keys?.() ?? []),
      /** @type {LegendEntry} */ ({ label: '', line: 'none', value: here }),
    ]);
  }
  function behind() {
    const history = job.history();
    const bins = history.bins(width());
    const shown = parts.filter(({ say }) => say);
    const rows = [];
    for (let bin = bins.at.length - 1; bin >= 0 && rows.length < ROWS_MAX; bin--) {
      const point = bins.point(bin);
      if (point >= 0) rows.push([`${history.iterations[point]} (${clock(history.at[point] * 1000)})`, ...shown.flatMap(({ values }) => values.map((column) => what.format(column[bin] ?? NaN)))]);
    }
    return { head: ['Iteration', ...what.head()], rows, note: `The latest ${rows.length} points, newest first.${bins.isBinned ? ' Each is the median of several iterations.' : ''}` };
  }
  const draw = whileVisible(frame.root, () => {
    const history = job.history();
    // Before the history is read, there are only the iterations of this moment.
    if (!job.isRead()) return;
    frame.nothing(history.at.length ? null : NO_STEP);
    if (!history.at.length) return;
    const bins = history.bins(width());
    parts = what.parts(history, bins);
    /** @type {Line[]} */ const lines = [];
    /** @type {Band[]} */ const bands = [];
    /** @type {Column[]} */ const columns = [];
    for (const part of parts) {
      for (const { between: [upper, lower], colour } of part.bands ?? []) bands.push({ between: [lines.length + upper, lines.length + lower], colour });
      lines.push(...part.lines);
      columns.push(...part.columns);
    }
    legend(null);
    chart.show(lines, bands, bins.at, columns, job.events());
  }, REDRAW_MS);
  return { root: frame.root, plot: frame.plot, draw };
}

/** Lines with their columns. `say` and `values`: the entry in the legend, and the columns that it shows at the cursor. @typedef {{ lines: Line[], columns: Column[], bands?: Band[], say?: LegendEntry, values: Column[] }} Part */

/** A line through medians, on the range from minimum to maximum if bins have several points. @param {import('./bins.js').Bins} bins @param {Column} column @param {Line} line @returns {Part} */
function ranged(bins, column, line) {
  const { low, middle, high } = bins.of(column);
  if (!bins.isBinned) return { lines: [line], columns: [middle], values: [middle] };
  const edge = { label: '', colour: line.colour, edge: true };
  return { lines: [{ ...edge, label: `${line.label}, maximum` }, { ...edge, label: `${line.label}, minimum` }, line], columns: [high, low, middle], bands: [{ between: [0, 1], colour: line.colour }], values: [middle] };
}

/** Expected and actual speed of one worker, below its name. @param {Job} job @param {{ title?: string, how?: string, height?: number, zero?: boolean, ends?: boolean, top?: () => number | undefined, span?: () => [number, number] | null }} [more] `title`: instead of the worker's name
 * @returns {Chart & { show: (worker: string | undefined, atOnce?: boolean) => void }}
 */
export function speedOf(job, more = {}) {
  /** @type {string | undefined} */ let worker;
  const title = h('span', {});
  const chart = overTime(job, {
    title,
    height: 200,
    name: more.title ? undefined : 'Speed: expected and actual',
    format: speed,
    head: () => ['Actual', 'Expected'],
    ...more,
    parts(history, bins) {
      const columns = history.workers.get(worker ?? '');
      if (!columns) return [];
      const colour = job.chosen.mark(worker ?? '')?.colour ?? '--c0';
      const actual = ranged(bins, columns.actual_samples_per_s, { label: 'actual', colour, width: 2 });
      const expected = bins.of(columns.predicted_samples_per_s).middle;
      const edge = { label: '', colour, edge: true };
      const bounds = [bins.of(columns.upper_samples_per_s).middle, bins.of(columns.lower_samples_per_s).middle];
      return [
        { lines: [{ ...edge, label: 'upper' }, { ...edge, label: 'lower' }], columns: bounds, bands: [{ between: [0, 1], colour: '--other' }], values: [] },
        { lines: [{ label: 'expected', colour: '--ink', dash: DASHED, width: 1.5 }], columns: [expected], values: [expected], say: { label: 'expected', colour: '--ink', line: 'dashed' } },
        { ...actual, say: { label: 'actual', colour } },
      ];
    },
  });
  return {
    ...chart,
    show(of, atOnce) {
      chart.root.hidden = of == null;
      if (of == null) return;
      if (worker !== of && !more.title) fill(title, badge(job.chosen.mark(of)), ' ', h('a', { href: workerLink(job.id, of), title: of }, of));
      worker = of;
      chart.draw(atOnce);
    },
  };
}

const SPEEDS = /** @type {const} */ (['actual_samples_per_s', 'predicted_samples_per_s']);
/** Number of bins of which the highest median ends the common scale. */
const SCALE_BINS = 150;

/** Expected and actual speed of each shown worker, the worst forecast first. @param {Job} job @returns {Chart} */
export function speeds(job) {
  /** @type {unknown} */ let binned;
  /** @type {number | undefined} */ let high;
  /** The end of the scale that all charts have in common. */
  const top = () => {
    const bins = job.history().bins(SCALE_BINS);
    if (binned !== bins || key !== scaled) {
      const known = order.flatMap((worker) => SPEEDS.map((name) => job.history().workers.get(worker)?.[name] ?? []));
      high = Math.max(...known.map((column) => bins.of(column).middle.reduce((/** @type {number} */ most, value) => Math.max(most, value ?? 0), 0))) * 1.08 || undefined;
      [binned, scaled] = [bins, key];
    }
    return high;
  };
  const slots = Array.from({ length: SHOWN_MAX }, () => speedOf(job, { zero: true, ends: true, top }));
  const root = h('section', { class: 'card', 'aria-labelledby': 'speeds-title' },
    h('div', { class: 'head' }, h('h2', { id: 'speeds-title' }, 'Speed: expected and actual')),
    h('p', { class: 'how' }, 'Largest forecast error first. Grey: 90 % interval of the expected speed. Colour: minimum to maximum over long ranges.'),
    h('div', { class: 'multiples' }, slots.map((slot) => slot.root)));
  let [key, scaled] = ['', ''];
  /** @type {string[]} */ let order = [];
  return {
    root,
    draw(atOnce) {
      const history = job.history();
      const shown = job.chosen.workers.filter((worker) => history.workers.has(worker));
      const now = `${job.isRead()} ${shown}`;
      // The order stays while the same workers are shown, so that charts do not move.
      if (now !== key) order = shown.map((worker) => ({ worker, error: history.error(worker) })).sort((one, other) => other.error - one.error).map(({ worker }) => worker);
      key = now;
      slots.forEach((slot, index) => slot.show(order[index], atOnce));
    },
  };
}

/** Step time, compared with the expected time with even shares. @param {Job} job @returns {Chart} */
export function stepTimes(job) {
  /** @type {[('step_time_s' | 'predicted_step_time_s' | 'even_step_time_s'), string, string, 'solid' | 'dashed' | 'dotted', number[] | undefined][]} */
  const kinds = [
    ['even_step_time_s', 'even shares, expected', '--c1', 'dotted', DOTTED],
    ['predicted_step_time_s', 'expected', '--c0', 'dashed', DASHED],
    ['step_time_s', 'actual', '--c0', 'solid', undefined],
  ];
  return overTime(job, {
    title: 'Step time',
    how: 'The gap below the dotted line is the time saved. Drag over a chart to zoom.',
    format: seconds,
    head: () => kinds.map(([, label]) => label),
    parts: (history, bins) => kinds.map(([name, label, colour, line, dash]) => {
      const own = { label, colour, dash, width: dash ? 1.75 : 2 };
      const part = dash ? { lines: [own], columns: [bins.of(history.step[name]).middle], values: [bins.of(history.step[name]).middle] } : ranged(bins, history.step[name], own);
      return { ...part, say: { label, colour, line } };
    }),
  });
}

/** Number of independent means across a smoothed chart. */
const MEANS = 30;

/** A moving mean. The worker that waits changes with every iteration; the wait in the long run matters. @param {Column} column @returns {Column} */
function smooth(column) {
  const width = Math.max(1, Math.round(column.length / MEANS));
  return column.map((value, index) => {
    if (value == null) return null;
    const known = column.slice(Math.max(0, index + 1 - width), index + 1).filter((other) => other != null);
    return known.reduce((sum, other) => sum + other, 0) / known.length;
  });
}

/** Time lost waiting. @param {Job} job @returns {Chart} */
export function waits(job) {
  const shown = () => job.chosen.workers.filter((worker) => job.history().workers.has(worker));
  return overTime(job, {
    title: 'Time lost waiting',
    how: 'Wait for the slowest worker in each iteration, as a moving mean. Lower is better.',
    format: seconds,
    zero: true,
    head: () => ['mean of all workers', ...shown()],
    parts(history, bins) {
      const one = (/** @type {Column} */ column, /** @type {Line} */ line, /** @type {LegendEntry} */ say) => {
        const values = smooth(bins.of(column).middle);
        return { lines: [line], columns: [values], say, values: [values] };
      };
      const mean = one(history.all.wait, { label: 'mean', colour: '--other', width: 3 }, { label: 'mean of all workers', colour: '--other' });
      return [mean, ...shown().flatMap((worker) => {
        const [mark, columns] = [job.chosen.mark(worker), history.workers.get(worker)];
        return mark && columns ? [one(columns.barrier_wait_s, { label: worker, colour: mark.colour, letter: mark.letter, width: 1.5 }, { label: worker, colour: mark.colour, letter: mark.letter })] : [];
      })];
    },
  });
}

/** Share of the batch below which the shown workers are drawn without the others. */
const WHOLE_FROM = 0.3;

/** Share of the batch of each worker. @param {Job} job @returns {Chart} */
export function shares(job) {
  const shown = () => job.chosen.workers.filter((worker) => job.history().workers.has(worker) && job.chosen.mark(worker));
  /** Whether the whole batch is drawn, or only the shown workers' part. */
  let whole = true;
  return overTime(job, {
    title: 'Shares of the batch',
    how: 'The part of each worker, stacked. Each step up or down is a change of the shares.',
    format: (value) => percent(value, whole ? 0 : 1),
    zero: true,
    top: () => (whole ? 1 : undefined),
    head: shown,
    parts(history, bins) {
      const totals = history.all.batch;
      const share = (/** @type {string} */ worker) => (history.workers.get(worker)?.local_batch ?? []).map((batch, index) => (batch == null || !totals[index] ? null : batch / totals[index]));
      const parts = shown().map((worker) => bins.of(share(worker)).middle);
      const others = history.workers.size > parts.length;
      // With many workers, the others would fill the whole chart.
      whole = !others || parts.reduce((sum, part) => sum + (part.findLast((value) => value != null) ?? 0), 0) > WHOLE_FROM;
      // Each area is drawn from the bottom up to the cumulative sum, the highest first. The part that the next area does
      // not cover is the worker's own.
      const known = bins.ranges.map(([first]) => first >= 0 && totals[first] > 0);
      let sum = known.map(() => 0);
      /** @type {Part[]} */
      const areas = shown().map((worker, place) => {
        sum = sum.map((below, index) => below + (parts[place][index] ?? 0));
        const mark = job.chosen.mark(worker);
        return {
          lines: [{ label: worker, colour: mark?.colour ?? '--other', fill: true, width: 0.5, stepped: true }],
          columns: [sum.map((value, index) => (known[index] ? value : null))],
          say: { label: worker, colour: mark?.colour, letter: mark?.letter },
          values: [parts[place]],
        };
      });
      /** @type {Part[]} */
      const rest = whole && others ? [{ lines: [{ label: 'all others', colour: '--other', fill: true, width: 0.5, stepped: true }], columns: [known.map((is) => (is ? 1 : null))], say: { label: 'all others', line: 'area', colour: '--other' }, values: [] }] : [];
      return [...rest, ...areas.reverse()];
    },
  });
}

/** Loss. @param {Job} job @returns {Chart} */
export function losses(job) {
  return overTime(job, {
    title: 'Loss',
    how: 'Mean over the samples of each iteration, as the workers report it.',
    format: (value) => number(value),
    head: () => ['Loss'],
    parts(history, bins) {
      const part = ranged(bins, history.step.loss, { label: 'loss', colour: '--c3' });
      // Scripts may record the loss in some iterations only. The line skips the others.
      const columns = part.columns.map((column) => column.map((value, bin) => value ?? (bins.point(bin) < 0 ? null : undefined)));
      return [{ ...part, columns, say: { label: 'loss', colour: '--c3' } }];
    },
  });
}

/** Multiplier of the learning rate. @param {Job} job @returns {Chart & { say: (words: string) => void }} */
export function rate(job) {
  const chart = overTime(job, {
    title: 'Learning rate',
    how: 'Multiplier of the learning rate that adapts it to the global batch. 1: as scheduled.',
    format: (value) => `×${number(value)}`,
    height: 150,
    head: () => ['Multiplier'],
    parts: (history, bins) => {
      const values = bins.of(history.step.lr_multiplier).middle;
      return [{ lines: [{ label: 'multiplier', colour: '--c2', stepped: true }], columns: [values], say: { label: 'multiplier', colour: '--c2' }, values: [values] }];
    },
  });
  const words = document.createElement('p');
  words.className = 'aside';
  chart.plot.before(words);
  return { ...chart, say: (text) => void (words.textContent = text) };
}

/** Finish times in the latest iteration. @param {Job} job @returns {Chart} */
export function finish(job) {
  const title = 'Finish times in the latest iteration';
  const how = 'Compute time, slowest first. If all bars end together, no worker waits.';
  const workers = () => latest(job.history());
  const together = () => (job.history().latest?.tail_samples ?? 0) > 0;
  const frame = figure({
    title,
    how,
    table: () => ({
      head: ['Worker', `Batch (${job.unit()})`, 'Claimed on demand', 'Expected', 'Finished after', 'Waited'],
      rows: workers().toSorted((a, b) => (b.compute_time_s ?? 0) - (a.compute_time_s ?? 0)).slice(0, ROWS_MAX).map((worker) => [worker.worker, number(worker.local_batch), number(Math.max(0, (worker.samples ?? 0) - worker.local_batch)), seconds(together() ? job.history().latest?.predicted_step_time_s : worker.predicted_compute_time_s), seconds(worker.compute_time_s), seconds(worker.barrier_wait_s)]),
      note: `Iteration ${job.history().latest?.iteration ?? job.history().iterations[job.history().reported] ?? ''}, slowest first.`,
    }),
  });
  const bars = new FinishBars(frame.plot);
  const draw = whileVisible(frame.root, () => {
    const { step, reported, latest: live } = job.history();
    const shown = workers();
    if (!shown.length && !job.isRead()) return;
    frame.nothing(shown.length ? null : 'No iteration has been reported yet.');
    if (!shown.length) return;
    frame.legend([
      { label: 'finished after', line: 'area', colour: '--soft' },
      ...(together() ? [/** @type {LegendEntry} */ ({ label: 'hatched: claimed on demand', line: 'none' })] : [/** @type {LegendEntry} */ ({ label: 'expected', line: 'solid', colour: '--ink' })]),
    ]);
    bars.show(
      shown,
      [
        { at: live ? live.predicted_step_time_s : step.predicted_step_time_s[reported], label: 'expected', kind: 'dashed' },
        { at: live ? live.even_step_time_s : step.even_step_time_s[reported], label: 'even shares', kind: 'dotted' },
      ],
      (worker) => job.chosen.mark(worker),
      together(),
    );
  }, 250);
  return { root: frame.root, draw };
}

/** The workers of the latest iteration, live or from the history. @param {History} history @returns {any[]} */
function latest(history) {
  if (history.latest) return history.latest.workers;
  const last = history.reported;
  return [...history.workers]
    .filter(([, columns]) => columns.local_batch[last] != null)
    .map(([worker, columns]) => ({
      worker,
      local_batch: columns.local_batch[last],
      compute_time_s: columns.compute_time_s[last],
      barrier_wait_s: columns.barrier_wait_s[last],
    }));
}
