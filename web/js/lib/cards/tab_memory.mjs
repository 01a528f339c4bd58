// @ts-check
/**
 * Keeps the newest facts of cards over a reload of the page. ComfyUI's history has them only after a queue entry has ended,
 * and training takes hours.
 */

const KEY = "wan_trainer.cards";
const MOST = 16;

export class Kept {
  /** @param {Pick<Storage, "getItem" | "setItem">} storage sessionStorage */
  constructor(storage) {
    this.storage = storage;
  }

  /** @param {string} place @returns {import("./card_facts.mjs").Facts | null} */
  get(place) {
    return this.all().find(([name]) => name === place)?.[1] ?? null;
  }

  /** @param {string} place @param {import("./card_facts.mjs").Facts} facts */
  put(place, facts) {
    this.write([...this.others(place), [place, facts]]);
  }

  /** @param {string} place */
  drop(place) {
    this.write(this.others(place));
  }

  /** @param {string} place */
  others(place) {
    return this.all().filter(([name]) => name !== place);
  }

  /** @param {[string, import("./card_facts.mjs").Facts][]} all */
  write(all) {
    try {
      this.storage.setItem(KEY, JSON.stringify(all.slice(-MOST)));
    } catch {
      // Storage is full or forbidden: ComfyUI's history has the facts later.
    }
  }

  /** @returns {[string, import("./card_facts.mjs").Facts][]} oldest first */
  all() {
    try {
      const known = JSON.parse(this.storage.getItem(KEY) ?? "[]");
      return Array.isArray(known) ? known.filter(Array.isArray) : [];
    } catch {
      return [];
    }
  }
}
