/** Samples of a node in columns, without duplicates, and bounded. */

/** Limit of samples: one hour at one sample per second. */
const SAMPLES_MAX = 3600;
/** Readings of processes, of which the largest is shown. */
const OF_PROCESSES = ['cgroup_cpu_throttled', 'cgroup_memory_used'];

export class Samples {
  /** Times, in seconds since 1970. @type {number[]} */ at = [];
  /** @type {Map<string, (number | null)[]>} */ #columns = new Map();

  /** A reading by name; readings of GPUs have the prefix `gpu0.`, `gpu1.` and so on, and limits of processes are the largest of all. @param {string} name @returns {(number | null)[]} */
  column(name) {
    return this.#columns.get(name) ?? this.at.map(() => null);
  }

  /** Adds the samples that are new. @param {any[]} samples oldest first */
  add(samples) {
    for (const sample of samples) {
      const at = sample.at_unix_ms / 1000;
      if (this.at.length && at <= this.at[this.at.length - 1]) continue;
      this.at.push(at);
      const known = new Map(Object.entries(sample.readings ?? {}));
      for (const gpu of sample.gpus ?? []) for (const [name, value] of Object.entries(gpu.readings ?? {})) known.set(`gpu${gpu.index}.${name}`, value);
      for (const { readings = {} } of sample.processes ?? []) for (const name of OF_PROCESSES) if (readings[name] != null) known.set(name, Math.max(readings[name], known.get(name) ?? 0));
      for (const name of known.keys()) if (!this.#columns.has(name)) this.#columns.set(name, new Array(this.at.length - 1).fill(null));
      for (const [name, column] of this.#columns) column.push(known.get(name) ?? null);
    }
    const extra = this.at.length - SAMPLES_MAX;
    if (extra <= 0) return;
    this.at.splice(0, extra);
    for (const column of this.#columns.values()) column.splice(0, extra);
  }
}
