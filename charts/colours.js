/** The colours of the page as they are now, for what is drawn on a canvas. */

/** Sent to everything that draws on a canvas. */
export const THEME_CHANGED = 'evenstep-theme-changed';

/** @type {Map<string, string>} */
const colours = new Map();

/** A colour of the page: `colour('--c0')`. @param {string} name */
export function colour(name) {
  let value = colours.get(name);
  if (!value) {
    value = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    colours.set(name, value);
  }
  return value;
}

/** Switches the page to its light or dark colours. @param {boolean} dark */
export function applyTheme(dark) {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  colours.clear();
  dispatchEvent(new Event(THEME_CHANGED));
}
