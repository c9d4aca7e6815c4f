/** The list of all nodes that agents measure. */

import { read, Refused } from '../api.js';
import { fill, h } from '../charts/dom.js';
import { ago, count, number, percent, plural } from '../charts/format.js';
import { workerLink } from '../job/workers.js';
import { poll } from '../poll.js';

const EVERY_MS = 5_000;
/** Age of the latest sample above which a node is shown as silent, in milliseconds. */
const SILENT_MS = 30_000;
/** Temperature from which a GPU is shown as hot, in degrees Celsius. GPUs lower their clocks from about 85. */
const HOT_CELSIUS = 85;
/** Readings of pressure, and what tasks wait for. */
const PRESSURES = { psi_cpu_some: 'a processor', psi_memory_some: 'memory', psi_io_some: 'a disk' };
/** Pressure from which a node is marked: workers there are slower than their machine. */
const PRESSURE_HIGH = 0.25;

/** @type {import('../main.js').View} */
export function nodesPage(content, _name, signal) {
  const list = h('div', { class: 'nodes' }, h('p', { class: 'loading' }, 'Loading'));
  fill(content, h('h1', { tabindex: -1 }, 'Nodes'), h('p', { class: 'lead' }, 'Machines measured by an agent. Its readings improve the forecasts of worker speeds.'), list);
  poll('v1/nodes', EVERY_MS, ({ nodes }) => {
    // Keep the focus.
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.getAttribute('href');
    fill(list, nodes.length ? nodes.toSorted((/** @type {any} */ a, /** @type {any} */ b) => Number(short(b.latest) != null) - Number(short(a.latest) != null) || (a.node < b.node ? -1 : 1)).map(card) : none());
    if (focused) /** @type {HTMLElement | null} */ ([...list.querySelectorAll('a')].find((link) => link.getAttribute('href') === focused))?.focus();
  }, signal, (/** @type {Refused} */ error) => fill(list, h('p', { class: 'empty' }, error.message)));
}

/** @param {any} node */
function card({ node, latest, samples, workers = [] }) {
  const now = Date.now();
  const silent = isSilent(latest);
  const { readings, gpus = [] } = latest;
  const hot = silent ? [] : gpus.map(trouble).filter(Boolean);
  return h('article', { class: 'card node' },
    h('div', { class: 'head' }, h('h2', {}, h('a', { href: `#/nodes/${encodeURIComponent(node)}` }, node)),
      h('span', { class: 'pill', 'data-state': silent ? 'silent' : short(latest) ? 'hot' : 'running' }, silent ? `silent, last ${ago(latest.at_unix_ms, now)}` : (short(latest) ?? 'measured')), latest.synthetic && h('span', { class: 'pill' }, 'synthetic readings')),
    hot.length > 0 && h('p', { class: 'hot' }, hot.map((words) => h('span', { class: 'pill', 'data-state': 'hot' }, words))),
    !silent && h('dl', { class: 'gauges' },
      gauge('Processors busy', readings.cpu_busy),
      gauge('Memory used', readings.memory_used),
      gauge('Waiting for a processor', readings.psi_cpu_some),
      gpus.map((/** @type {any} */ gpu) => gauge(`GPU ${gpu.index} busy${gpu.readings?.gpu_temperature_celsius == null ? '' : `, ${number(gpu.readings.gpu_temperature_celsius, 2)} °C`}`, gpu.readings?.gpu_busy))),
    h('p', { class: 'why' }, ...runs(workers), `${count(samples)} samples stored.`));
}

/** Limits of what is named on a card. */
const JOBS_NAMED = 3;

/** The jobs on a node, with links to their workers. @param {{ job_id: string, worker: string }[]} workers @param {boolean} [all] whether each worker is named */
export function runs(workers, all = false) {
  const jobs = Map.groupBy(workers, ({ job_id: job }) => job);
  const named = [...jobs].slice(0, all ? Infinity : JOBS_NAMED);
  const list = named.flatMap(([job, its], index) => [index ? ', ' : '', h('a', { href: `#/jobs/${encodeURIComponent(job)}` }, job), all ? [' (', ...its.flatMap(({ worker }, place) => [place ? ', ' : '', h('a', { href: workerLink(job, worker) }, worker)]), ')'] : ` (${plural(its.length, 'worker')})`].flat());
  return workers.length ? ['Runs ', ...list, jobs.size > named.length ? ` and ${plural(jobs.size - named.length, 'other job')}. ` : '. '] : [];
}

/** Whether a node's agent has stopped to send samples, so that its latest sample says nothing about now. @param {any} latest */
export const isSilent = (latest) => Date.now() - latest.at_unix_ms > SILENT_MS;

/** The resource that tasks of a node wait for now, in words. @param {any} latest the latest sample @returns {string | null} */
export function short(latest) {
  if (isSilent(latest)) return null;
  const { readings } = latest;
  const [name, share] = Object.entries(PRESSURES).map(([reading, what]) => /** @type {[string, number]} */ ([what, readings[reading] ?? 0])).sort((one, other) => other[1] - one[1])[0];
  return share >= PRESSURE_HIGH ? `${percent(share, 0)} of the time waiting for ${name}` : null;
}

/** Why a GPU cannot be read. @type {Record<string, string>} */
const GAPS = { lost: 'lost: failed, or removed', timed_out: 'its driver does not respond', no_permission: 'the agent may not read it', unsupported: 'its driver has no readings', driver_failed: 'its driver failed' };

/** What is wrong with a GPU: no readings, reasons to lower its clock, or its temperature. @param {any} gpu @returns {string | null} */
export function trouble({ index, gap, readings, throttle_reasons: reasons = [] }) {
  if (gap) return `GPU ${index}: ${GAPS[gap] ?? gap}`;
  const celsius = readings?.gpu_temperature_celsius;
  const why = [...reasons.map((/** @type {string} */ reason) => reason.replaceAll('_', ' ')), celsius >= HOT_CELSIUS ? `${number(celsius, 2)} °C` : null].filter(Boolean);
  return why.length ? `GPU ${index}: ${why.join(', ')}` : null;
}

/** @param {string} name @param {number | undefined} share */
function gauge(name, share) {
  const bar = h('i', {});
  bar.style.setProperty('width', `${Math.min(1, share ?? 0) * 100}%`);
  return h('div', {}, h('dt', {}, name), h('dd', {}, h('span', { class: 'well', 'aria-hidden': 'true' }, bar), h('span', {}, share == null ? 'no reading' : percent(share, 0))));
}

function none() {
  return h('div', { class: 'card welcome' },
    h('h2', {}, 'No node yet'),
    h('p', {}, 'Start an agent on each machine that trains. It measures the machine and sends samples to this predictor.'),
    h('pre', { tabindex: 0 }, `evenstep-agent --server ${location.origin}`));
}
