// @ts-check
/** Memory of a run's devices, as reported by each rank: a bar per device, and a summary in one line. Pure. */

import { counted, t } from "../page/words.mjs";
import { clock, gib, known } from "./format.mjs";

/**
 * @typedef {import("./facts.mjs").MemoryBar} MemoryBar
 * @typedef {import("../page/routes.mjs").Device} Device
 * @typedef {import("../page/routes.mjs").Memory} Memory
 */

/** Maximum number of devices without a summary line. */
const MOST_BARS = 4;

/**
 * A bar per device; devices of silent ranks and of the slowest rank come first if there are many.
 * @param {Device[]} devices
 * @param {Record<string, Memory> | undefined} memory sums of all ranks, by device; used for the predictions of a single rank
 * @param {number | null | undefined} slowest rank
 * @returns {MemoryBar[]}
 */
export function deviceBars(devices, memory, slowest) {
  const ranks = numberOf(devices, "rank");
  const hosts = numberOf(devices, "host");
  const worth = (/** @type {Device} */ one) =>
    known(one.silent) ? 2 : Number(one.rank === slowest);
  const many = devices.length > MOST_BARS;
  const shown = many ? [...devices].sort((one, other) => worth(other) - worth(one)) : devices;
  return shown.map((one) => {
    const { device, host, name, rank, now, busy, silent } = one;
    const { peak, predicted } = { peak: one.peak, ...(ranks > 1 ? {} : memory?.[device]) };
    const whole = Math.max(...[one.total, now, peak, predicted].filter(known), 1);
    const share = (/** @type {unknown} */ bytes) => (known(bytes) ? bytes / whole : null);
    const place = [hosts > 1 ? host : "", device].filter(Boolean).join(" ");
    const parts = [
      known(silent) ? t("⚠ no response for {time}", { time: clock(silent) }) : "",
      shortName(name),
      memoryText({ ...one, peak }),
      known(busy) ? t("{percent} % busy", { percent: busy }) : "",
      ranks > 1 && rank === slowest ? t("slowest") : "",
    ];
    return {
      device: ranks > 1 ? t("rank {rank} · {place}", { rank: rank ?? "?", place }) : place,
      title: [name, host].filter(Boolean).join(", "),
      text: parts.filter(Boolean).join(" · "),
      now: share(now),
      peak: share(peak),
      predicted: share(predicted),
    };
  });
}

/**
 * A summary of many devices in one line; empty for few.
 * @param {Device[]} devices
 * @param {number | null | undefined} slowest rank
 */
export function manyText(devices, slowest) {
  if (devices.length <= MOST_BARS) return "";
  const used = devices.map(({ now, peak }) => now ?? peak).filter(known);
  const size = (/** @type {number} */ bytes) => (bytes / 2 ** 30).toFixed(1);
  const total = Math.max(...devices.map((one) => one.total).filter(known), 0);
  const values = {
    n: devices.length,
    low: size(Math.min(...used)),
    high: size(Math.max(...used)),
    total: gib(total),
  };
  const silent = new Set(devices.filter((one) => known(one.silent)).map((one) => one.rank)).size;
  const parts = [
    used.length && total
      ? t("{n} devices, {low} to {high} of {total}", values)
      : t("{n} devices", values),
    known(slowest) ? t("slowest rank {rank}", { rank: slowest }) : "",
    silent ? `⚠ ${counted(silent, "1 rank does not respond", "{n} ranks do not respond")}` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

/** @param {Device} device */
function memoryText({ now, peak, total }) {
  if (known(now))
    return known(total) ? t("{used} of {total}", { used: gib(now), total: gib(total) }) : gib(now);
  const of = known(total) ? ` ${t("of {size}", { size: gib(total) })}` : "";
  return known(peak) ? t("{size} peak", { size: gib(peak) }) + of : "";
}

/** Short name of a GPU, such as RTX 4090. @param {string | undefined} name */
function shortName(name) {
  return String(name ?? "").replace(/^NVIDIA (GeForce )?|^AMD (Radeon )?/, "");
}

/** Number of distinct values. @param {Device[]} devices @param {"rank" | "host"} key */
function numberOf(devices, key) {
  return new Set(devices.map((one) => one[key])).size;
}
