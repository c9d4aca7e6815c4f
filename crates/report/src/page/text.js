/** Text on a canvas: measuring and fitting. */

import { FONT } from './line.js';

const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement('canvas').getContext('2d'));
/** @param {string} text */
export const widthOf = (text) => {
  pen.font = FONT;
  return pen.measureText(text).width;
};
/** Shortens text to fit, with an ellipsis. @param {string} text @param {number} room in pixels */
export function fitted(text, room) {
  let end = text.length;
  while (end > 1 && widthOf(end < text.length ? `${text.slice(0, end)}…` : text) > room) end--;
  return end < text.length ? `${text.slice(0, end)}…` : text;
}

/** Breaks text into lines that fit, after spaces and underscores. @param {string} text @param {number} room in pixels */
export function wrapped(text, room) {
  /** @type {string[]} */
  const lines = [];
  for (const word of text.split(/(?<=[ _])/)) {
    const longer = `${lines.at(-1) ?? ''}${word}`;
    if (lines.length && widthOf(longer.trim()) <= room) lines[lines.length - 1] = longer;
    else lines.push(fitted(word, room));
  }
  return lines.slice(0, 3);
}

/** Labels of an axis in a common format. @param {number[]} splits @param {number} apart */
export function tickLabels(splits, apart) {
  const size = Math.max(...splits.map(Math.abs));
  if (size >= 1e12 || apart < 1e-6) return splits.map((at) => (at ? String(Number(at.toPrecision(6))) : '0'));
  const [divisor, suffix] = size >= 1e9 ? [1e9, 'G'] : size >= 1e6 ? [1e6, 'M'] : [1, ''];
  const digits = Math.max(0, Math.ceil(-Math.log10(apart / divisor) - 1e-9));
  const form = new Intl.NumberFormat('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return splits.map((at) => (at ? form.format(at / divisor) + suffix : '0'));
}
