/** Charts of the readings of a node. */

import { figure, ROWS_MAX } from './charts/figure.js';
import { LineChart } from './charts/line.js';
import { clock, number, percent } from './charts/format.js';
import { binsOf } from './job/bins.js';
import { poll } from './poll.js';
import { Samples } from './samples.js';

const EVERY_MS = 2_000;
/** Limits of samples: in the first request, and in later ones. */
const FIRST = 900;
const THEN = 60;

/** A chart: readings of the machine with their names; of GPUs, one reading of each. @typedef {{ title: string, how: string, format: (value: number) => string, top?: number, lines: [string, string][] }} What */

/** @type {What[]} */
const OF_MACHINE = [
  { title: 'Processors', how: 'Share of all processors that is busy. Near 100 %, workers on this machine slow each other down.', format: (value) => percent(value, 0), top: 1, lines: [['cpu_busy', 'busy']] },
  { title: 'Memory', how: 'Share of the memory in use.', format: (value) => percent(value, 0), top: 1, lines: [['memory_used', 'used']] },
  { title: 'Pressure', how: 'Share of the time in which some task waited for a processor, for memory or for a disk. Above a few percent, this resource is short.', format: (value) => percent(value, 1), lines: [['psi_cpu_some', 'for a processor'], ['psi_memory_some', 'for memory'], ['psi_io_some', 'for a disk']] },
  { title: 'Limits of processes', how: 'Limits of the cgroups of the watched processes, of the process that is nearest to its limit: share of the periods in which its CPU limit stopped it, and share of its memory limit in use.', format: (value) => percent(value, 0), top: 1, lines: [['cgroup_cpu_throttled', 'stopped by the CPU limit'], ['cgroup_memory_used', 'of the memory limit']] },
  { title: 'Tasks', how: 'Number of runnable tasks, and number of tasks that are blocked on a disk.', format: (value) => number(value), lines: [['procs_running', 'runnable'], ['procs_blocked', 'blocked']] },
];
/** @type {What[]} */
const OF_GPU = [
  { title: 'GPUs: busy', how: 'Share of the time in which any kernel ran. It does not show which part of the GPU was used.', format: (value) => percent(value, 0), top: 1, lines: [['gpu_busy', 'busy']] },
  { title: 'GPUs: clock', how: 'Clock in MHz. If it falls while the GPU is busy, heat or power limits it.', format: (value) => `${number(value, 4)} MHz`, lines: [['sm_clock_mhz', 'clock']] },
  { title: 'GPUs: temperature', how: 'Temperature in degrees Celsius. From about 85, GPUs lower their clocks.', format: (value) => `${number(value)} °C`, lines: [['gpu_temperature_celsius', 'temperature']] },
  { title: 'GPUs: power', how: 'Power in watts.', format: (value) => `${number(value)} W`, lines: [['gpu_power_w', 'power']] },
];
const DASHES = [undefined, [7, 4], [2, 3]];
const KINDS = /** @type {const} */ (['solid', 'dashed', 'dotted']);
const COLOURS = ['--c0', '--c1', '--c2', '--c3', '--c4', '--c5', '--c6', '--c7'];

/**
 * Reads the samples of a node at an interval, and draws its charts.
 * @param {string} node @param {HTMLElement} grid @param {{ group: string, span?: () => [number, number] | null, only?: string[], first?: number }} options
 *   `group`: charts with a common cursor. `span`: their common time axis. `only`: the titles of the charts. `first`: limit of samples in the first request.
 * @param {AbortSignal} signal @param {(samples: Samples, gpus: Map<number, string>, latest: any) => void} onSamples @param {(error: import('./api.js').Refused) => void} onRefused
 */
export function readings(node, grid, { group, span, only, first = FIRST }, signal, onSamples, onRefused) {
  const samples = new Samples();
  /** @type {(() => void)[]} */ const drawn = [];

  /** @param {What} what @param {() => [string, string][]} lines columns of the samples, and their names */
  function chart(what, lines) {
    const { title } = what;
    const style = (/** @type {number} */ place) => ({ colour: COLOURS[place % COLOURS.length], line: lines().length <= KINDS.length ? KINDS[place] : KINDS[Math.floor(place / COLOURS.length) % KINDS.length] });
    const frame = figure({
      title, how: what.how,
      table: () => ({
        head: ['Time', ...lines().map(([, label]) => label)],
        rows: samples.at.slice(-ROWS_MAX).map((at, index) => [clock(at * 1000), ...lines().map(([name]) => what.format(samples.column(name).slice(-ROWS_MAX)[index] ?? NaN))]).reverse(),
        note: 'The latest samples, newest first.',
      }),
    });
    const legend = (/** @type {number | null} */ index) => frame.legend(lines().map(([name, label], place) => ({ label, ...style(place), value: what.format(samples.column(name)[index == null ? samples.at.length - 1 : binsOf(samples.at, Infinity).point(index)] ?? NaN) })));
    const drawing = new LineChart(frame.plot, { name: title, format: what.format, zero: what.top != null, top: () => what.top, group, span, height: only && 110, onPoint: legend }, signal);
    drawn.push(() => {
      const known = lines().some(([name]) => samples.column(name).some((value) => value != null));
      if (only) frame.root.hidden = !known;
      frame.nothing(known ? null : 'This machine does not have this reading.');
      if (!known) return;
      legend(null);
      const bins = binsOf(samples.at, Infinity);
      drawing.show(lines().map(([, label], place) => ({ label, colour: style(place).colour, dash: DASHES[KINDS.indexOf(style(place).line)], width: 1.75 })), [], bins.at, lines().map(([name]) => bins.of(samples.column(name)).middle));
    });
    return frame.root;
  }

  const shown = (/** @type {What[]} */ all) => all.filter(({ title }) => !only || only.includes(title));
  /** GPUs in the order of their indices. @type {Map<number, string>} */
  const gpus = new Map();
  let known = 0;
  poll(() => `v1/nodes/${encodeURIComponent(node)}/samples?limit=${known ? THEN : first}`, EVERY_MS, (view) => {
    samples.add(view.samples);
    known = samples.at.length;
    const latest = view.samples.at(-1);
    if (latest) {
      if (!drawn.length) shown(OF_MACHINE).forEach((what) => grid.append(chart(what, () => what.lines)));
      const had = gpus.size;
      for (const gpu of latest.gpus ?? []) gpus.set(gpu.index, `GPU ${gpu.index}`);
      if (!had && gpus.size) shown(OF_GPU).forEach((what) => grid.append(chart(what, () => [...gpus].map(([index, name]) => [`gpu${index}.${what.lines[0][0]}`, name]))));
    }
    onSamples(samples, gpus, latest);
    for (const draw of drawn) draw();
  }, signal, onRefused);
}
