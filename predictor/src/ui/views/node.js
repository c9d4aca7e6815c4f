/** The page of a node: the workers that run there, and the readings of its agent. */

import { read, Refused } from '../api.js';
import { fill, h, say, set } from '../charts/dom.js';
import { ago, clock, plural } from '../charts/format.js';
import { readings } from '../readings.js';
import { isSilent, runs, short, trouble } from './nodes.js';

/** Time ranges: seconds, and words. An agent sends one sample per second. @type {[number, string][]} */
const RANGES = [[300, '5 min'], [900, '15 min'], [3600, '1 h']];

/** @type {import('../main.js').View} */
export function nodePage(content, node, signal) {
  const about = h('p', { class: 'lead' });
  const there = h('p', {});
  const missing = h('div', {});
  const grid = h('div', { class: 'grid' });
  const hot = h('p', { class: 'hot' });
  const buttons = RANGES.map(([seconds, words]) => h('button', { type: 'button', class: 'small', onclick: () => choose(seconds) }, words));
  fill(content, h('p', { class: 'crumbs' }, h('a', { href: '#/nodes' }, 'Nodes'), ' /'), h('h1', { tabindex: -1 }, node), about, there, hot, h('div', { class: 'ranges', role: 'group', 'aria-label': 'Time range' }, buttons), grid, missing);
  read('v1/nodes', signal).then(({ nodes }) => fill(there, runs(nodes.find((/** @type {any} */ one) => one.node === node)?.workers ?? [], true)), (error) => {
    if (!signal.aborted && !(error instanceof Refused)) throw error;
  });
  let reading = new AbortController();
  signal.addEventListener('abort', () => reading.abort());
  choose(RANGES[1][0]);

  /** @param {number} seconds */
  function choose(seconds) {
    buttons.forEach((button, index) => set(button, 'aria-pressed', String(RANGES[index][0] === seconds)));
    reading.abort();
    reading = new AbortController();
    fill(grid);
    let [from, until] = [0, 0];
    readings(node, grid, { group: `node:${node}`, span: () => [Math.max(from, until - seconds), until], first: seconds }, reading.signal, (samples, gpus, latest) => {
      [from, until] = [samples.at[0] ?? 0, samples.at.at(-1) ?? 0];
      describe(samples, gpus, latest);
    }, (error) => say(about, error.message));
  }

  /** @param {import('../samples.js').Samples} samples @param {Map<number, string>} gpus @param {any} latest */
  function describe(samples, gpus, latest) {
    if (!latest) return say(about, 'No samples of this node: its agent has not sent any, or retention has deleted them.');
    const names = [...new Set((latest.gpus ?? []).map((/** @type {any} */ gpu) => gpu.name).filter(Boolean))];
    const held = isSilent(latest) ? [] : [short(latest), ...(latest.gpus ?? []).map(trouble)].filter(Boolean);
    fill(hot, held.map((/** @type {string} */ words) => h('span', { class: 'pill', 'data-state': 'hot' }, words)));
    say(about, `${plural(samples.at.length, 'sample')} since ${clock(samples.at[0] * 1000)}.${isSilent(latest) ? ` The agent is silent, last sample ${ago(latest.at_unix_ms, Date.now())}.` : ''}${latest.synthetic ? ' These readings are synthetic (demo source).' : ''}${names.length ? ` ${plural(gpus.size, 'GPU')}: ${names.join(', ')}.` : ''}`);
    const gaps = Object.entries(latest.missing ?? {});
    fill(missing, gaps.length > 0 && h('section', { class: 'card' }, h('h2', {}, 'Missing readings'), h('p', { class: 'how' }, 'A missing reading is omitted and never counted as zero.'), h('ul', {}, gaps.map(([name, why]) => h('li', {}, h('code', {}, name), `: ${why}`)))));
  }
}
