/** JSON schemas as lists of fields, and as examples. */

import { h } from '../charts/dom.js';

/** Depth limit of an example, because schemas may be recursive. */
const DEPTH_MAX = 6;

/** Resolves references and nullable types. @param {any} api the whole document @param {any} schema @returns {any} */
export function resolve(api, schema) {
  if (!schema) return {};
  if (schema.$ref) return resolve(api, schema.$ref.slice(2).split('/').reduce((/** @type {any} */ at, /** @type {string} */ key) => at?.[key], api));
  const choices = (schema.oneOf ?? schema.anyOf ?? []).filter((/** @type {any} */ one) => one.type !== 'null');
  if (choices.length === 1) return { ...resolve(api, choices[0]), ...(schema.description && { description: schema.description }) };
  if (schema.allOf) {
    const parts = schema.allOf.map((/** @type {any} */ part) => resolve(api, part));
    return { ...Object.assign({}, ...parts, schema), properties: Object.assign({}, ...parts.map((/** @type {any} */ part) => part.properties)) };
  }
  return schema;
}

/** The name of a schema's type. @param {any} api @param {any} schema @returns {string} */
function kind(api, schema) {
  const resolved = resolve(api, schema);
  if (resolved.enum) return resolved.enum.map((/** @type {any} */ value) => JSON.stringify(value)).join(' | ');
  const type = [resolved.type ?? (resolved.properties ? 'object' : resolved.oneOf ? 'one of' : 'any value')].flat().filter((one) => one !== 'null')[0];
  return type === 'array' ? `array of ${kind(api, resolved.items)}` : (type ?? 'any value');
}

/** The schemas that a value consists of. @param {any} api @param {any} schema @returns {any} */
function inner(api, schema) {
  const resolved = resolve(api, schema);
  return resolved.items ? inner(api, resolved.items) : resolved;
}

/** A list of the fields of a schema. Nested fields are listed when their parent is opened. @param {any} api @param {any} schema @returns {Element} */
export function fields(api, schema) {
  const { properties = {}, required = [], oneOf = [], additionalProperties } = inner(api, schema);
  const entries = [...Object.entries(properties), ...oneOf.map((/** @type {any} */ one, /** @type {number} */ at) => [`variant ${at + 1}`, one])];
  if (additionalProperties?.type || additionalProperties?.$ref) entries.push(['(any key)', additionalProperties]);
  if (!entries.length) return h('p', { class: 'soft' }, kind(api, schema));
  return h(
    'ul',
    { class: 'fields' },
    entries.map(([name, field]) => {
      const item = h('li', {}, h('code', {}, name), ' ', h('span', { class: 'soft' }, kind(api, field) + (required.includes(name) ? ', required' : '')));
      const description = field.description ?? resolve(api, field).description;
      if (description) item.append(` ${description}`);
      const nested = inner(api, field);
      if (nested.properties || nested.oneOf || nested.additionalProperties?.$ref) {
        const more = h('details', {}, h('summary', {}, `Fields of ${name}`));
        more.addEventListener('toggle', () => more.append(fields(api, field)), { once: true });
        item.append(more);
      }
      return item;
    }),
  );
}

/** An example value of a schema, with its required fields. @param {any} api @param {any} schema @returns {any} */
export function example(api, schema, depth = 0) {
  const resolved = resolve(api, schema);
  if (resolved.example !== undefined) return resolved.example;
  if (resolved.default != null) return resolved.default;
  if (resolved.enum) return resolved.enum[0];
  if (depth >= DEPTH_MAX) return null;
  if (resolved.oneOf) return example(api, resolved.oneOf[0], depth + 1);
  switch ([resolved.type ?? (resolved.properties ? 'object' : '')].flat().filter((one) => one !== 'null')[0]) {
    case 'object': {
      const { properties = {}, required = [] } = resolved;
      return Object.fromEntries(required.map((/** @type {string} */ name) => [name, example(api, properties[name], depth + 1)]));
    }
    case 'array':
      return [example(api, resolved.items, depth + 1)];
    case 'integer':
    case 'number':
      return resolved.minimum ?? 1;
    case 'boolean':
      return false;
    case 'string':
      return 'text';
    default:
      return null;
  }
}
