/** Formats of numbers, times and counts. Unknown values are a dash. */

export const NONE = '–';

/** Created once: with 64 workers, a frame formats hundreds of numbers. */
const WHOLE = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const SIGNIFICANT = [1, 2, 3, 4].map((digits) => new Intl.NumberFormat('en', { maximumSignificantDigits: digits }));

/** Formats a number with 1 to 4 significant digits, grouped. @param {number | null | undefined} value @param {number} [digits] */
export function number(value, digits = 3) {
  if (value == null || !Number.isFinite(value)) return NONE;
  return (Math.abs(value) >= 10 ** digits ? WHOLE : SIGNIFICANT[digits - 1]).format(value);
}

/** Formats a count. @param {number | null | undefined} value */
export const count = (value) => (value == null ? NONE : WHOLE.format(value));

/** Formats a duration in seconds, in a suitable unit. @param {number | null | undefined} value */
export function seconds(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (size === 0) return '0 s';
  if (size < 1e-3) return `${number(value * 1e6)} µs`;
  if (size < 1) return `${number(value * 1e3)} ms`;
  if (size < 120) return `${number(value)} s`;
  if (size < 7200) return `${number(value / 60)} min`;
  if (size < 172800) return `${number(value / 3600)} h`;
  return `${number(value / 86400)} days`;
}

/** Formats a share of 1 in percent. @param {number | null | undefined} value @param {number} [digits] */
export const percent = (value, digits = 1) => (value == null || !Number.isFinite(value) ? NONE : `${(value * 100).toFixed(digits)} %`);

/** Formats a share in percent with its sign, so that the direction is not shown by colour alone. @param {number | null | undefined} value */
export const signed = (value) => (value == null || !Number.isFinite(value) ? NONE : `${value >= 0 ? '+' : '−'}${(Math.abs(value) * 100).toFixed(1)} %`);

/** Formats an amount with an SI prefix and three digits, and its unit: `20.2 k samples/s`. @param {number | null | undefined} value @param {string} unit */
export function amount(value, unit) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  const [scale, prefix] = size < 1e4 ? [1, ''] : size < 1e6 ? [1e3, ' k'] : size < 1e9 ? [1e6, ' M'] : [1e9, ' G'];
  return `${number(value / scale)}${prefix} ${unit}`;
}

/** Formats a speed in samples per second. @param {number | null | undefined} value */
export const speed = (value) => (value == null ? NONE : `${number(value)}/s`);

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (value == null) return NONE;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const power = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  return `${number(value / 1024 ** power)} ${units[power]}`;
}

/** Formats a time of day. @param {number | null | undefined} unixMs @param {boolean} [withSeconds] */
export const clock = (unixMs, withSeconds = true) =>
  unixMs == null ? NONE : new Date(unixMs).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit', second: withSeconds ? '2-digit' : undefined });

/** Formats a date and time. @param {number | null | undefined} unixMs */
export const moment = (unixMs) =>
  unixMs == null ? NONE : new Date(unixMs).toLocaleString('en-GB', { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit', second: '2-digit' });

/** Formats the age of a time. @param {number | null | undefined} unixMs @param {number} nowMs */
export function ago(unixMs, nowMs) {
  if (unixMs == null) return 'never';
  const past = Math.max(0, (nowMs - unixMs) / 1000);
  if (past < 1.5) return 'just now';
  if (past < 120) return `${Math.round(past)} s ago`;
  if (past < 7200) return `${Math.round(past / 60)} min ago`;
  if (past < 172800) return `${Math.round(past / 3600)} h ago`;
  return `${Math.round(past / 86400)} days ago`;
}

/** Formats a count with its noun. @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
