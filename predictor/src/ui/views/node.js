/** The page of a node: the workers that run there, and the readings of its agent. */

import { read, Refused } from '../api.js';
import { fill, h, say } from '../charts/dom.js';
import { clock, plural } from '../charts/format.js';
import { readings } from '../readings.js';
import { runs, short, trouble } from './nodes.js';

/** @type {import('../main.js').View} */
export function nodePage(content, node, signal) {
  const about = h('p', { class: 'lead' });
  const there = h('p', {});
  const missing = h('div', {});
  const grid = h('div', { class: 'grid' });
  const hot = h('p', { class: 'hot' });
  fill(content, h('p', { class: 'crumbs' }, h('a', { href: '#/nodes' }, 'Nodes'), ' /'), h('h1', { tabindex: -1 }, node), about, there, hot, grid, missing);
  read('v1/nodes', signal).then(({ nodes }) => fill(there, runs(nodes.find((/** @type {any} */ one) => one.node === node)?.workers ?? [], true)), (error) => {
    if (!signal.aborted && !(error instanceof Refused)) throw error;
  });
  readings(node, grid, { group: `node:${node}` }, signal, (samples, gpus, latest) => {
    if (!latest) return say(about, 'No samples of this node: its agent has not sent any, or retention has deleted them.');
    const names = [...new Set((latest.gpus ?? []).map((/** @type {any} */ gpu) => gpu.name).filter(Boolean))];
    const held = [short(latest.readings), ...(latest.gpus ?? []).map(trouble)].filter(Boolean);
    fill(hot, held.map((/** @type {string} */ words) => h('span', { class: 'pill', 'data-state': 'hot' }, words)));
    say(about, `${plural(samples.at.length, 'sample')} since ${clock(samples.at[0] * 1000)}.${latest.synthetic ? ' These readings are synthetic (demo source).' : ''}${names.length ? ` ${plural(gpus.size, 'GPU')}: ${names.join(', ')}.` : ''}`);
    const gaps = Object.entries(latest.missing ?? {});
    fill(missing, gaps.length > 0 && h('section', { class: 'card' }, h('h2', {}, 'Missing readings'), h('p', { class: 'how' }, 'A missing reading is omitted and never counted as zero.'), h('ul', {}, gaps.map(([name, why]) => h('li', {}, h('code', {}, name), `: ${why}`)))));
  }, (error) => say(about, error.message));
}
