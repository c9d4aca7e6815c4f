/** Creation and change of elements. Values become text or attributes: the name of a job or worker is never parsed as
 * HTML.
 */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Creates an element. Properties that begin with `on` are listeners, the others attributes. `false`, `null` and `undefined` omit
 * an attribute, `true` sets it without a value.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else set(element, name, value);
  }
  element.append(...children.flat().filter((child) => child != null && child !== false).map(asNode));
  return element;
}

/** Sets or removes an attribute, if it differs. @param {Element} element @param {string} name @param {any} value */
export function set(element, name, value) {
  if (value == null || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value === true ? '' : value)) element.setAttribute(name, value === true ? '' : String(value));
}

/** Sets the text of an element, if it differs. @param {Element} element @param {string | number} text */
export function say(element, text) {
  if (element.textContent !== String(text)) element.textContent = String(text);
}

/** Replaces the children of an element. @param {Element} element @param {...(Child | Child[])} children */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child != null && child !== false).map(asNode));
}

/** @param {any} child @returns {Node} */
function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}
