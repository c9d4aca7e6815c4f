/** The frame of a chart: title, description, legend, and the same data as a table. */

import { fill, h, say } from './dom.js';

/** @typedef {{ label: string, colour?: string, letter?: string, line?: 'solid' | 'dashed' | 'dotted' | 'area' | 'faint' | 'none', value?: string }} LegendEntry */
/** @typedef {{ head: string[], rows: (string | number)[][], note: string }} Table */

/** Limit of rows in the table of a chart. */
export const ROWS_MAX = 50;

let figures = 0;

/**
 * @param {{ title: string | Node, how?: string, wide?: boolean, heading?: string, table: () => Table }} options `heading`: the element of the title.
 */
export function figure({ title, how, wide, heading = 'h2', table }) {
  const id = `figure-${++figures}`;
  const plot = h('div', { class: 'plot' });
  const legend = h('ul', { class: 'legend' });
  const behind = h('div', { class: 'behind', id: `${id}-table`, hidden: true });
  const button = h('button', { type: 'button', class: 'quiet small', 'aria-expanded': 'false', 'aria-controls': `${id}-table` }, 'Table');
  button.addEventListener('click', () => {
    behind.hidden = !behind.hidden;
    button.setAttribute('aria-expanded', String(!behind.hidden));
    // Built when it is opened, and not updated after: rows that change cannot be read.
    fill(behind, behind.hidden ? null : tableOf(root.querySelector('.head > :first-child').textContent, table()));
  });
  const empty = h('p', { class: 'nodata waiting' }, 'Loading');
  const root = h(
    'figure',
    { class: wide ? 'card figure wide' : 'card figure', 'aria-labelledby': `${id}-title`, 'aria-describedby': how ? `${id}-how` : null },
    h('div', { class: 'head' }, h(heading, { id: `${id}-title` }, title), button),
    how && h('p', { class: 'how', id: `${id}-how` }, how),
    legend,
    plot,
    empty,
    behind,
  );
  return {
    root,
    plot,
    /** Shows the chart, or the reason why it has no data. @param {string | null} why */
    nothing(why) {
      empty.hidden = why == null;
      empty.classList.remove('waiting');
      plot.hidden = legend.hidden = why != null;
      if (why != null) say(empty, why);
    },
    /** @param {LegendEntry[]} entries */
    legend(entries) {
      const key = JSON.stringify(entries.map(({ value, ...rest }) => rest));
      if (legend.dataset.key !== key) {
        legend.dataset.key = key;
        fill(legend, entries.map((entry) => h('li', {}, swatch(entry), entry.label && h('span', { class: 'name' }, entry.label), h('b', {}))));
      }
      entries.forEach((entry, index) => say(legend.children[index].lastElementChild, entry.value ?? ''));
    },
  };
}

/** @param {LegendEntry} entry */
function swatch({ colour, letter, line = 'solid' }) {
  if (line === 'none') return null;
  const mark = h('i', { class: letter ? `mark ${line}` : `key ${line}`, 'aria-hidden': letter ? null : 'true' }, letter ?? '');
  if (colour) mark.style.setProperty('--c', `var(${colour})`);
  return mark;
}

/** @param {string} title @param {Table} table */
function tableOf(title, { head, rows, note }) {
  return h(
    'div',
    { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `${title}, as a table` },
    h(
      'table',
      {},
      h('caption', {}, note),
      h('thead', {}, h('tr', {}, head.map((name, index) => h('th', { scope: 'col', class: index ? 'number' : null }, name)))),
      h('tbody', {}, rows.map((row) => h('tr', {}, row.map((cell, index) => (index ? h('td', { class: 'number' }, cell) : h('th', { scope: 'row' }, cell)))))),
    ),
  );
}
