/** The time range of a job's charts: the latest minutes, everything, or a range that was selected by dragging. The address of the
 * page names it, so that it can be shared.
 */

import { h, set } from '../charts/dom.js';
import { moment } from '../charts/format.js';

/** Presets: name in the address, seconds, and words. @type {[string, number | null, string][]} */
const PRESETS = [['1m', 60, '1 min'], ['5m', 300, '5 min'], ['15m', 900, '15 min'], ['1h', 3600, '1 h'], ['6h', 21600, '6 h'], ['1d', 86400, '1 day'], ['all', null, 'All']];
const DEFAULT = '15m';
/** Shortest range that can be selected, in seconds: the resolution of the address. */
const SHORTEST_S = 0.001;

export class Range {
  /** @type {string} */ #preset = DEFAULT;
  /** The selected range, in seconds since 1970. @type {[number, number] | null} */ #fixed = null;
  #changed;
  #buttons = PRESETS.map(([name, , words]) => h('button', { type: 'button', class: 'small', onclick: () => this.#choose(name) }, words));
  #said = h('span', { class: 'soft' });
  root = h('div', { class: 'ranges', role: 'group', 'aria-label': 'Time range' }, this.#buttons, this.#said);

  /** @param {() => void} changed */
  constructor(changed) {
    this.#changed = changed;
    const asked = queryOf(location.hash);
    const [from, until] = [Number(asked.get('from')), Number(asked.get('until'))];
    if (from > 0 && until > from) this.#fixed = [from / 1000, until / 1000];
    const last = asked.get('last');
    if (last && PRESETS.some(([name]) => name === last)) this.#preset = last;
    this.#draw();
  }

  /** Whether live iterations are added. */
  get isLive() {
    return this.#fixed == null;
  }

  /** Age in seconds above which points are removed; null to keep all. */
  get spanS() {
    return this.#fixed ? null : (PRESETS.find(([name]) => name === this.#preset)?.[1] ?? null);
  }

  /** The query of the history. @param {number | null} endMs end of a job that has ended, in milliseconds since 1970 */
  query(endMs) {
    if (this.#fixed) return `from_unix_ms=${Math.floor(this.#fixed[0] * 1000)}&until_unix_ms=${Math.ceil(this.#fixed[1] * 1000)}`;
    const { spanS } = this;
    if (spanS == null) return 'from_unix_ms=0';
    // The latest minutes of a job that has ended are those before its end.
    return endMs ? `from_unix_ms=${Math.max(0, Math.floor(endMs - spanS * 1000))}` : `since_s=${spanS}`;
  }

  /** Selects a range. @param {number} from @param {number} until */
  select = (from, until) => {
    if (until - from < SHORTEST_S || (this.#fixed && this.#fixed[0] === from && this.#fixed[1] === until)) return;
    this.#fixed = [from, until];
    this.#store();
  };

  /** @param {string} preset */
  #choose(preset) {
    [this.#preset, this.#fixed] = [preset, null];
    this.#store();
  }

  #store() {
    const fixed = this.#fixed;
    const asked = queryOf(location.hash);
    for (const name of ['last', 'from', 'until']) asked.delete(name);
    if (fixed) {
      asked.set('from', String(Math.floor(fixed[0] * 1000)));
      asked.set('until', String(Math.ceil(fixed[1] * 1000)));
    } else if (this.#preset !== DEFAULT) asked.set('last', this.#preset);
    setQuery(asked);
    this.#draw();
    this.#changed();
  }

  #draw() {
    PRESETS.forEach(([name], index) => set(this.#buttons[index], 'aria-pressed', String(!this.#fixed && name === this.#preset)));
    this.#said.textContent = this.#fixed ? `${moment(this.#fixed[0] * 1000)} to ${moment(this.#fixed[1] * 1000)}` : '';
  }
}

/** The part of an address after `?`. @param {string} hash */
export const queryOf = (hash) => new URLSearchParams(hash.split('?')[1] ?? '');

/** Changes the part of the address after `?`, without a new entry in the browser's history. @param {URLSearchParams} asked */
export function setQuery(asked) {
  const text = asked.toString();
  history.replaceState(null, '', `${location.hash.split('?')[0] || '#/'}${text ? `?${text}` : ''}`);
}
