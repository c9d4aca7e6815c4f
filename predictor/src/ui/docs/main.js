/** The page of the API: all operations of /openapi.json by tag. */

import { fill, h } from '../charts/dom.js';
import { followTheme } from '../theme.js';
import { fields, resolve } from './schema.js';
import { requestForm } from './request.js';

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];
const content = /** @type {HTMLElement} */ (document.getElementById('content'));

/** @param {any} api the whole document @param {string} method @param {string} path @param {any} operation */
function card(api, method, path, operation) {
  const element = h(
    'details',
    { class: 'card operation', id: `${method}${path.replace(/[^a-z0-9]+/gi, '-')}` },
    h('summary', {}, h('span', { class: 'pill' }, method.toUpperCase()), h('code', {}, path), h('span', { class: 'soft' }, operation.summary)),
  );
  // Drawn when it is opened for the first time: all operations together have thousands of fields.
  element.addEventListener('toggle', () => element.append(...details(api, method, path, operation)), { once: true });
  return element;
}

/** @param {any} api @param {string} method @param {string} path @param {any} operation @returns {Element[]} */
function details(api, method, path, operation) {
  const parts = [];
  if (operation.description) parts.push(h('p', {}, operation.description));
  if (operation.parameters?.length) {
    const rows = operation.parameters.map((/** @type {any} */ { name, in: place, required, description, schema }) =>
      h('li', {}, h('code', {}, name), ' ', h('span', { class: 'soft' }, `${place}, ${resolve(api, schema).type ?? 'value'}${required ? ', required' : ''}`), description && ` ${description}`),
    );
    parts.push(h('h3', {}, 'Parameters'), h('ul', { class: 'fields' }, rows));
  }
  const body = operation.requestBody?.content?.['application/json']?.schema;
  if (body) parts.push(h('h3', {}, 'Body'), fields(api, body));
  const responses = Object.entries(operation.responses ?? {}).flatMap(([status, response]) => {
    const [kind, { schema = null } = {}] = /** @type {[string, any]} */ (Object.entries(response.content ?? {})[0] ?? ['']);
    // All errors have the same fields.
    const shown = schema && Number(status) < 400 ? fields(api, schema) : null;
    return [h('p', {}, h('b', {}, status), ` ${response.description} `, h('span', { class: 'soft' }, kind)), shown];
  });
  parts.push(h('h3', {}, 'Responses'), h('div', {}, responses), h('h3', {}, 'Try it'), requestForm(api, method, path, operation, body));
  return parts;
}

async function main() {
  followTheme();
  const response = await fetch('../openapi.json');
  if (!response.ok) throw new Error(`openapi.json: ${response.status} ${response.statusText}`);
  const api = await response.json();
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    METHODS.filter((method) => methods[method]).map((method) => ({ method, path, operation: methods[method] })),
  );
  fill(
    content,
    h('h1', {}, api.info.title, ' ', h('span', { class: 'soft' }, api.info.version)),
    h('p', { class: 'lead' }, api.info.description, ' OpenAPI document: ', h('a', { href: '../openapi.json' }, 'openapi.json'), '.'),
    api.tags.map((/** @type {any} */ { name, description }) =>
      h(
        'section',
        {},
        h('h2', {}, name, ' ', h('span', { class: 'soft' }, description)),
        operations.filter(({ operation }) => operation.tags?.includes(name)).map(({ method, path, operation }) => card(api, method, path, operation)),
      ),
    ),
  );
}

main().catch((error) => fill(content, h('p', { class: 'empty' }, `Cannot read the API description: ${error.message}. Reload the page to retry.`)));
