// @ts-check
/** Small pieces of the panel: a stage's chip, a number, a device's memory. */

import { element } from "../page/dom.mjs";
import { t } from "../page/words.mjs";

/** @param {string} name translated */
export function chip(name) {
  const time = element("span", { class: "wan-time" });
  return {
    time,
    element: element("li", { class: "wan-chip", "data-state": "ahead" }, `${name} `, time),
  };
}

/** @param {import("../run/facts.mjs").Fact} fact */
export function number({ name, title, value }) {
  return element("div", { title }, element("dt", {}, name), element("dd", {}, value));
}

/** @param {import("../run/facts.mjs").MemoryBar} bar */
export function memoryBar({ device, title, text, now, peak, predicted }) {
  const fillOf = (/** @type {number | null} */ share, /** @type {string} */ kind) => {
    if (share === null) return null;
    const part = element("span", { class: kind });
    part.style.setProperty("--wan-share", `${(share * 100).toFixed(1)}%`);
    return part;
  };
  const shown = now ?? peak ?? 0;
  const meter = element(
    "div",
    {
      class: "wan-meter",
      role: "meter",
      "aria-label": t("Memory of {device}", { device }),
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": Math.round(shown * 100),
      "aria-valuetext": text,
    },
    fillOf(peak, "wan-peak"),
    fillOf(now, "wan-now"),
    fillOf(predicted, "wan-predicted"),
  );
  return element(
    "div",
    { class: "wan-device", title },
    element("span", {}, device),
    meter,
    element("span", {}, text),
  );
}
