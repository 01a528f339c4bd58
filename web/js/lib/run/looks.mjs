// @ts-check
/** A saved step's coverage by ComfyUI's loader, and its update per block. Pure. */

import { counted, t } from "../page/words.mjs";
import { known, short } from "./format.mjs";

/**
 * @typedef {{ name: string, norm: number, share: number }} Bar a block, and its part of the largest change
 * @typedef {{ modules: number | null, passedOver: number, bars: Bar[] }} Look
 */

const BLOCK = /(\d+)$/;

/**
 * @param {{ updates?: Record<string, number | null>, modules?: number | null, passed_over?: number }} line of a saved step
 * @returns {Look}
 */
export function lookOf({ updates, modules, passed_over: passedOver }) {
  const norms = Object.entries(updates ?? {}).filter(([, norm]) => known(norm));
  const most = Math.max(...norms.map(([, norm]) => Number(norm)), 0);
  const bars = norms.map(([name, norm]) => ({
    name,
    norm: Number(norm),
    share: most ? Number(norm) / most : 0,
  }));
  bars.sort(
    (a, b) => group(a.name).localeCompare(group(b.name)) || number(a.name) - number(b.name),
  );
  return { modules: known(modules) ? modules : null, passedOver: passedOver ?? 0, bars };
}

/** Whether ComfyUI's loader takes every key; empty where the line has no count. @param {Look} look */
export function loaderText({ modules, passedOver }) {
  if (modules === null) return "";
  return passedOver
    ? counted(
        passedOver,
        "ComfyUI's loader skips 1 key of this LoRA.",
        "ComfyUI's loader skips {n} keys of this LoRA.",
      )
    : t("ComfyUI's loader loads every key: {n} weights.", { n: modules });
}

/** The change of each block in a sentence. @param {Look} look */
export function updateText({ bars }) {
  if (!bars.length) return "";
  const norms = bars.map(({ norm }) => norm);
  const [least, most] = [Math.min(...norms), Math.max(...norms)];
  const where = bars.find(({ norm }) => norm === most)?.name ?? "";
  if (!most) return t("It has no effect yet.");
  return t("Update per block {least} to {most}, the largest in {where}.", {
    least: short(least),
    most: short(most),
    where,
  });
}

/** @param {string} name such as "high blocks.7" */
function group(name) {
  return name.replace(BLOCK, "");
}

/** @param {string} name */
function number(name) {
  return Number(BLOCK.exec(name)?.[1] ?? -1);
}
