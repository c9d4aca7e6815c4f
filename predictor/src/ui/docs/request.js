/** A form that sends one request to this service and shows the response. */

import { h, say } from '../charts/dom.js';
import { example } from './schema.js';

/** Limit of the displayed response, in characters. */
const SHOWN_MAX = 100_000;

/**
 * @param {any} api the whole document
 * @param {string} method
 * @param {string} path
 * @param {any} operation
 * @param {any} body schema of the body, if it has one
 * @returns {Element}
 */
export function requestForm(api, method, path, operation, body) {
  /** @type {{ name: string, place: string, input: HTMLInputElement }[]} */
  const inputs = (operation.parameters ?? []).map((/** @type {any} */ { name, in: place, required }) => ({ name, place, input: h('input', { type: 'text', required: required || place === 'path', placeholder: place }) }));
  const token = operation.security?.length ? h('input', { type: 'password', autocomplete: 'off', placeholder: 'only if the service has one' }) : null;
  const text = body ? h('textarea', { spellcheck: 'false' }, JSON.stringify(example(api, body), null, 2)) : null;
  const shown = h('pre', { hidden: true, tabindex: 0, role: 'region', 'aria-label': 'Response' });
  const button = h('button', { type: 'submit', class: 'primary' }, `Send ${method.toUpperCase()}`);

  async function send() {
    const query = new URLSearchParams();
    let target = path.slice(1);
    for (const { name, place, input } of inputs) {
      if (place === 'path') target = target.replace(`{${name}}`, encodeURIComponent(input.value));
      else if (place === 'query' && input.value) query.set(name, input.value);
    }
    const headers = new Headers();
    if (text) headers.set('content-type', 'application/json');
    if (token?.value) headers.set('authorization', `Bearer ${token.value}`);
    button.disabled = true;
    shown.hidden = false;
    try {
      const response = await fetch(`../${target}${query.size ? `?${query}` : ''}`, { method: method.toUpperCase(), headers, body: text?.value });
      say(shown, `${response.status} ${response.statusText}\n\n${await read(response)}`);
    } catch (error) {
      say(shown, `No response: ${error instanceof Error ? error.message : error}`);
    } finally {
      button.disabled = false;
    }
  }

  /** @param {Event} event */
  const onsubmit = (event) => {
    event.preventDefault();
    send();
  };
  return h(
    'form',
    { class: 'request', onsubmit },
    inputs.map(({ name, input }) => h('label', { class: 'field' }, name, input)),
    token && h('label', { class: 'field' }, 'operator token', token),
    text && h('label', { class: 'field' }, 'body (JSON)', text),
    button,
    shown,
  );
}

/** The text of a response: JSON indented, or the first event of a stream. @param {Response} response */
async function read(response) {
  if (response.headers.get('content-type')?.startsWith('text/event-stream') && response.body) {
    const reader = response.body.getReader();
    const { value } = await reader.read();
    await reader.cancel();
    return `${new TextDecoder().decode(value)}\n(the stream continues)`;
  }
  const text = await response.text();
  try {
    return JSON.stringify(JSON.parse(text), null, 2).slice(0, SHOWN_MAX);
  } catch {
    return text.slice(0, SHOWN_MAX);
  }
}
