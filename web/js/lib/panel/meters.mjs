// @ts-check
/** A chip per stage with its time, numbers, and a memory bar per device. */

import { element, fill, mark, write } from "../page/dom.mjs";
import { t } from "../page/words.mjs";
import { deviceBars, manyText } from "../run/devices.mjs";
import { facts, memoryBars, memoryOf } from "../run/facts.mjs";
import { clock } from "../run/format.mjs";
import { stageName } from "../run/names.mjs";
import { recorded, STAGES } from "../run/stages.mjs";
import { chip, memoryBar, number } from "./parts.mjs";

/**
 * @typedef {import("../page/routes.mjs").Detail} Detail
 * @typedef {import("../run/history.mjs").RunHistory} RunHistory
 * @typedef {import("../run/stages.mjs").StageClock} StageClock
 */

export class Meters {
  constructor() {
    this.chips = new Map(Object.keys(STAGES).map((name) => [name, chip(stageName(name))]));
    const chips = [...this.chips.values()].map((one) => one.element);
    this.stages = element("ol", { class: "wan-stages", "aria-label": t("Stages") }, ...chips);
    this.numbers = element("dl", { class: "wan-facts" });
    this.memory = element("div", { class: "wan-memory" });
    this.many = element("summary");
    /** The folded bars of many devices. */
    this.folded = element("details", {}, this.many);
  }

  /**
   * @param {RunHistory} history
   * @param {Detail | null} detail
   * @param {StageClock} stageClock
   * @param {number} now milliseconds
   * @param {boolean} gone whether ComfyUI does not respond, so that current values are unknown
   */
  draw(history, detail, stageClock, now, gone) {
    for (const [name, one] of this.chips) {
      const seconds = stageClock.seconds(name, recorded(history, name), now);
      drawChip(one, seconds, name === stageClock.active && !gone);
    }
    this.drawNumbers(facts(history, detail).filter(({ name }) => !gone || name !== t("left")));
    const memory = memoryOf(history, detail);
    const devices = detail?.devices ?? [];
    const slowest = detail?.state === "running" ? history.newest?.slowest_rank : null;
    if (devices.length)
      this.drawMemory(deviceBars(devices, memory, slowest), manyText(devices, slowest));
    else this.drawMemory(memoryBars(memory));
    for (const part of [this.stages, this.numbers, this.memory])
      part.classList.toggle("wan-stale", gone);
  }

  /** @param {import("../run/facts.mjs").Fact[]} all */
  drawNumbers(all) {
    const key = all.map((fact) => fact.name).join();
    if (this.numbers.dataset.names !== key) {
      this.numbers.dataset.names = key;
      fill(this.numbers, ...all.map(number));
    }
    all.forEach((fact, index) => {
      const value = this.numbers.children[index].lastElementChild;
      if (value) write(value, fact.value);
    });
  }

  /** @param {import("../run/facts.mjs").MemoryBar[]} bars @param {string} many summary of many devices; empty for few */
  drawMemory(bars, many = "") {
    const key = JSON.stringify([bars, many]);
    if (this.memory.dataset.known === key) return;
    this.memory.dataset.known = key;
    write(this.many, many);
    const drawn = bars.map(memoryBar);
    const list = { class: "wan-memory", role: "group", tabindex: 0, "aria-label": many };
    if (many) fill(this.folded, this.many, element("div", list, ...drawn));
    fill(this.memory, ...(many ? [this.folded] : drawn));
  }
}

/** @param {ReturnType<typeof chip>} one @param {number | null} seconds @param {boolean} active */
function drawChip(one, seconds, active) {
  write(one.time, clock(seconds));
  mark(one.element, "data-state", active ? "active" : seconds === null ? "ahead" : "seen");
  if (active) mark(one.element, "aria-current", "step");
  else one.element.removeAttribute("aria-current");
}
