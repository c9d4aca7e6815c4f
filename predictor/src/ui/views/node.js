/** The page of a node: the readings of its agent. */

import { figure, ROWS_MAX } from '../charts/figure.js';
import { LineChart } from '../charts/line.js';
import { fill, h, say } from '../charts/dom.js';
import { clock, number, percent, plural } from '../charts/format.js';
import { poll } from '../poll.js';
import { Samples } from '../samples.js';

const EVERY_MS = 2_000;
/** Limits of samples: in the first request, and in later ones. */
const FIRST = 900;
const THEN = 60;

/** @typedef {{ title: string, how: string, format: (value: number) => string, top?: number, lines: [string, string][] }} What */

/** @type {What[]} */
const OF_MACHINE = [
  { title: 'Processors', how: 'Share of all processors that is busy. Near 100 %, workers on this machine slow each other down.', format: (value) => percent(value, 0), top: 1, lines: [['cpu_busy', 'busy']] },
  { title: 'Memory', how: 'Share of the memory in use.', format: (value) => percent(value, 0), top: 1, lines: [['memory_used', 'used']] },
  { title: 'Pressure', how: 'Share of the time in which some task waited for a processor, for memory or for a disk. Above a few percent, this resource is short.', format: (value) => percent(value, 1), lines: [['psi_cpu_some', 'for a processor'], ['psi_memory_some', 'for memory'], ['psi_io_some', 'for a disk']] },
  { title: 'Tasks', how: 'Number of runnable tasks, and number of tasks that are blocked on a disk.', format: (value) => number(value), lines: [['procs_running', 'runnable'], ['procs_blocked', 'blocked']] },
];
/** @type {What[]} */
const OF_GPU = [
  { title: 'busy', how: 'Share of the time in which any kernel ran. It does not show which part of the GPU was used.', format: (value) => percent(value, 0), top: 1, lines: [['gpu_busy', 'busy']] },
  { title: 'clock', how: 'Clock of the GPU, in MHz. If it falls while the GPU is busy, heat or power limits it.', format: (value) => `${number(value, 4)} MHz`, lines: [['sm_clock_mhz', 'clock']] },
  { title: 'temperature', how: 'Temperature in degrees Celsius.', format: (value) => `${number(value)} °C`, lines: [['gpu_temperature_celsius', 'temperature']] },
  { title: 'power', how: 'Power in watts.', format: (value) => `${number(value)} W`, lines: [['gpu_power_w', 'power']] },
];
const DASHES = [undefined, [7, 4], [2, 3]];
const KINDS = /** @type {const} */ (['solid', 'dashed', 'dotted']);
const COLOURS = ['--c0', '--c1', '--c2'];

/** @type {import('../main.js').View} */
export function nodePage(content, node, signal) {
  const samples = new Samples();
  const about = h('p', { class: 'lead' });
  const missing = h('div', {});
  const grid = h('div', { class: 'grid' });
  fill(content, h('p', { class: 'crumbs' }, h('a', { href: '#/nodes' }, 'Nodes'), ' /'), h('h1', { tabindex: -1 }, node), about, grid, missing);
  /** @type {(() => void)[]} */ const drawn = [];
  const charted = new Set();

  /** @param {What} what @param {string} key @param {string} prefix */
  function chart(what, key, prefix) {
    const title = `${prefix}${what.title}`;
    const column = (/** @type {string} */ name) => samples.column(`${key}${name}`);
    const frame = figure({
      title, how: what.how,
      table: () => ({
        head: ['Time', ...what.lines.map(([, label]) => label)],
        rows: samples.at.slice(-ROWS_MAX).map((at, index) => [clock(at * 1000), ...what.lines.map(([name]) => what.format(column(name).slice(-ROWS_MAX)[index] ?? NaN))]).reverse(),
        note: 'The latest samples, newest first.',
      }),
    });
    const legend = (/** @type {number | null} */ index) => frame.legend(what.lines.map(([name, label], place) => ({ label, colour: COLOURS[place], line: KINDS[place], value: what.format(column(name)[index ?? samples.at.length - 1] ?? NaN) })));
    const lines = new LineChart(frame.plot, { name: title, format: what.format, zero: what.top != null, top: () => what.top, group: `node:${node}`, onPoint: legend }, signal);
    drawn.push(() => {
      const known = what.lines.some(([name]) => column(name).some((value) => value != null));
      frame.nothing(known ? null : 'This machine does not have this reading.');
      if (!known) return;
      legend(null);
      lines.show(what.lines.map(([, label], place) => ({ label, colour: COLOURS[place], dash: DASHES[place], width: 1.75 })), [], samples.at, what.lines.map(([name]) => column(name)));
    });
    return frame.root;
  }

  let known = 0;
  poll(() => `v1/nodes/${encodeURIComponent(node)}/samples?limit=${known ? THEN : FIRST}`, EVERY_MS, (view) => {
    samples.add(view.samples);
    known = samples.at.length;
    const latest = view.samples.at(-1);
    if (!latest) {
      say(about, 'No samples of this node: its agent has not sent any, or retention has deleted them.');
      return;
    }
    if (!charted.size) OF_MACHINE.forEach((what) => grid.append(chart(what, '', '')));
    charted.add('');
    for (const gpu of latest.gpus ?? []) {
      const key = `gpu${gpu.index}.`;
      if (!charted.has(key)) OF_GPU.forEach((what) => grid.append(chart(what, key, `GPU ${gpu.index} ${gpu.name ? `(${gpu.name}) ` : ''}`)));
      charted.add(key);
    }
    const held = (latest.gpus ?? []).flatMap((/** @type {any} */ gpu) => (gpu.throttle_reasons ?? []).map((/** @type {string} */ reason) => `GPU ${gpu.index}: ${reason.replaceAll('_', ' ')}`));
    say(about, `${plural(samples.at.length, 'sample')} since ${clock(samples.at[0] * 1000)}.${latest.synthetic ? ' These readings are synthetic (demo source).' : ''}${held.length ? ` Reduced clocks: ${held.join('; ')}.` : ''}`);
    const gaps = Object.entries(latest.missing ?? {});
    fill(missing, gaps.length > 0 && h('section', { class: 'card' }, h('h2', {}, 'Missing readings'), h('p', { class: 'how' }, 'A missing reading is omitted and never counted as zero.'), h('ul', {}, gaps.map(([name, why]) => h('li', {}, h('code', {}, name), `: ${why}`)))));
    for (const draw of drawn) draw();
  }, signal, (error) => say(about, error.message));
}
