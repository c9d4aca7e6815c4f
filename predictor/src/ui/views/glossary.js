/** The words of the page and of the documents, from docs/glossary.md. */

import { fill, h } from '../charts/dom.js';

/** @type {import('../main.js').View} */
export function glossaryPage(content, _name, signal) {
  const list = h('div', { class: 'glossary' }, h('p', { class: 'loading' }, 'Loading'));
  fill(content, h('h1', { tabindex: -1 }, 'Glossary'), list);
  fetch('ui/glossary.md', { signal })
    .then((response) => response.text())
    .then((text) => fill(list, sections(text)), () => signal.aborted || fill(list, h('p', { class: 'empty' }, 'The glossary cannot be read now.')));
}

/** Sections with a heading, an introduction and terms. @param {string} text */
function sections(text) {
  return text.split(/^## /m).slice(1).map((section) => {
    const [title, ...lines] = section.split('\n');
    const blocks = lines.join('\n').split(/^- /m).map((block) => block.replaceAll(/\s+/g, ' ').trim());
    const terms = blocks.slice(1).map((block) => /^\*\*(.+?)\*\*: (.*)$/.exec(block) ?? ['', block, '']);
    return h('section', { class: 'card' }, h('h2', {}, inline(title)), blocks[0] && h('p', { class: 'how' }, inline(blocks[0])),
      h('dl', {}, terms.map(([, term, meaning]) => h('div', {}, h('dt', {}, term), h('dd', {}, inline(meaning))))));
  });
}

/** Text with its code; links become their words. @param {string} text */
const inline = (text) => text.replaceAll(/\[([^\]]+)\]\([^)]*\)/g, '$1').split('`').map((part, index) => (index % 2 ? h('code', {}, part) : part));
