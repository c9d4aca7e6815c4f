/** The page of the store: its contents, size and retention. Read rarely, because the service counts rows for it. */

import { fill, h } from '../charts/dom.js';
import { ago, bytes, count, moment, percent, seconds } from '../charts/format.js';
import { poll } from '../poll.js';

const EVERY_MS = 30_000;
/** The service counts rows up to this number. */
const ROWS_COUNTED = 1_000_000;

/** @type {Record<string, [string, string]>} */
const LEVELS = {
  samples: ['Samples of nodes', 'as sent by the agents'],
  reports: ['Reports of workers', 'one for each worker and iteration'],
  answers: ['Allocations', 'shares and decision of each iteration'],
  node_minutes: ['Minutes of nodes', 'older samples, rolled up'],
  node_hours: ['Hours of nodes', 'older minutes, rolled up'],
  worker_minutes: ['Minutes of workers', 'older reports, rolled up'],
  worker_hours: ['Hours of workers', 'older minutes, rolled up'],
};

/** @type {import('../main.js').View} */
export function storePage(content, _name, signal) {
  const body = h('div', { class: 'stack' }, h('p', { class: 'loading' }, 'Loading'));
  fill(content, h('h1', { tabindex: -1 }, 'Store'), h('p', { class: 'lead' }, 'All data is in one database. Old rows are rolled up into minutes, then into hours, and finally deleted.'), body);
  poll('v1/store', EVERY_MS, (store) => {
    const { retention } = store;
    const facts = [
      ['Database', store.backend === 'sqlite' ? 'SQLite' : store.backend === 'postgres' ? 'PostgreSQL' : store.backend, `schema ${store.schema}`],
      ['On disk', bytes(store.disk_bytes), `${bytes(store.used_bytes)} in use`],
      ['Size limit', store.keep_bytes == null ? 'none' : bytes(store.keep_bytes), store.keep_bytes == null ? 'set by --keep-bytes' : `${percent(store.used_bytes / store.keep_bytes)} of it used`],
      ['Last retention run', ago(retention.looked_unix_ms, Date.now()), `${count(retention.rolled_up_rows)} rows rolled up since the start`],
    ];
    fill(body,
      retention.last_failure && h('p', { class: 'error', role: 'alert' }, `The last retention run failed: ${retention.last_failure}`),
      h('dl', { class: 'figures' }, facts.map(([name, value, note]) => h('div', {}, h('dt', {}, name), h('dd', {}, value, h('span', { class: 'note' }, note))))),
      h('section', { class: 'card' }, h('div', { class: 'head' }, h('h2', {}, 'Contents')),
        h('p', { class: 'how' }, `Raw rows for ${seconds(retention.keep_raw_s)}, minutes for ${seconds(retention.keep_minutes_s)}, hours for ${seconds(retention.keep_hours_s)}.`),
        h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Contents' }, h('table', {},
          h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Kind'), h('th', { scope: 'col', class: 'number' }, 'Rows'), h('th', { scope: 'col', class: 'number' }, 'Oldest'))),
          h('tbody', {}, store.levels.map((/** @type {any} */ level) => h('tr', {}, h('th', { scope: 'row' }, LEVELS[level.level]?.[0] ?? level.level, h('span', { class: 'note' }, LEVELS[level.level]?.[1] ?? '')), h('td', { class: 'number' }, `${count(level.rows)}${level.rows === ROWS_COUNTED ? ' or more' : ''}`), h('td', { class: 'number' }, moment(level.oldest_unix_ms)))))))));
  }, signal, (error) => fill(body, h('p', { class: 'empty' }, error.message)));
}
