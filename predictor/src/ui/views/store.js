/** The page of the store: its contents, size and retention. Read rarely, because the service counts rows for it. */

import { fill, h } from '../charts/dom.js';
import { ago, bytes, count, moment, percent, seconds } from '../charts/format.js';
import { poll } from '../poll.js';

const EVERY_MS = 30_000;

/** @type {Record<string, [string, string]>} */
const LEVELS = {
  samples: ['Samples of nodes', 'as the agents sent them'],
  reports: ['Reports of workers', 'one for each worker and iteration'],
  answers: ['Answers', 'what was planned for each iteration, and why'],
  node_minutes: ['Minutes of nodes', 'older samples, summed up'],
  node_hours: ['Hours of nodes', 'older minutes, summed up'],
  worker_minutes: ['Minutes of workers', 'older reports, summed up'],
  worker_hours: ['Hours of workers', 'older minutes, summed up'],
};

/** @type {import('../main.js').View} */
export function storePage(content, _name, signal) {
  const body = h('div', { class: 'stack' }, h('p', { class: 'loading' }, 'Loading'));
  fill(content, h('h1', { tabindex: -1 }, 'Store'), h('p', { class: 'lead' }, 'Everything is kept in one database. What grows old is summed up by minutes, then by hours, and goes in the end.'), body);
  poll('v1/store', EVERY_MS, (store) => {
    const { retention } = store;
    const facts = [
      ['Kept in', store.backend === 'sqlite' ? 'SQLite' : store.backend === 'postgres' ? 'PostgreSQL' : store.backend, `schema ${store.schema}`],
      ['On disk', bytes(store.disk_bytes), `${bytes(store.used_bytes)} in use`],
      ['At most', store.keep_bytes == null ? 'no bound' : bytes(store.keep_bytes), store.keep_bytes == null ? 'set by --keep-bytes' : `${percent(store.used_bytes / store.keep_bytes)} of it in use`],
      ['Looked through', ago(retention.looked_unix_ms, Date.now()), `${count(retention.rolled_up_rows)} rows summed up since the start`],
    ];
    fill(body,
      retention.last_failure && h('p', { class: 'error', role: 'alert' }, `The last look for old rows broke off: ${retention.last_failure}`),
      h('dl', { class: 'figures' }, facts.map(([name, value, note]) => h('div', {}, h('dt', {}, name), h('dd', {}, value, h('span', { class: 'note' }, note))))),
      h('section', { class: 'card' }, h('div', { class: 'head' }, h('h2', {}, 'What is kept')),
        h('p', { class: 'how' }, `Raw rows for ${seconds(retention.keep_raw_s)}, minutes for ${seconds(retention.keep_minutes_s)}, hours for ${seconds(retention.keep_hours_s)}.`),
        h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'What is kept' }, h('table', {},
          h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Kind'), h('th', { scope: 'col', class: 'number' }, 'Rows'), h('th', { scope: 'col', class: 'number' }, 'The oldest'))),
          h('tbody', {}, store.levels.map((/** @type {any} */ level) => h('tr', {}, h('th', { scope: 'row' }, LEVELS[level.level]?.[0] ?? level.level, h('span', { class: 'note' }, LEVELS[level.level]?.[1] ?? '')), h('td', { class: 'number' }, count(level.rows)), h('td', { class: 'number' }, moment(level.oldest_unix_ms)))))))));
  }, signal, (error) => fill(body, h('p', { class: 'empty' }, error.message)));
}
