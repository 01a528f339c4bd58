// @ts-check
/** Texts and numbers of a model split over devices, for the card of Split Across GPUs. Pure. */

import { t } from "../page/words.mjs";
import { gib, known } from "../run/format.mjs";
import { list } from "./lists.mjs";

/**
 * The output `wan_split` of SplitAcrossGPUs, in bytes; `planned` adds `predicted`, a training's peak, from the plan.
 * @typedef {{ weights?: number | null, predicted?: number | null, total?: number | null }} Memory
 * @typedef {{ model?: string, mode?: string, control_blocks?: number, devices?: { name: string, title?: string }[],
 *   copies?: number[][], memory?: Record<string, Memory> }} Split
 * @typedef {{ device: number, from: number, to: number }} Run consecutive blocks on one device
 * @typedef {{ name: string, title: string, holds: string, text: string, now: number | null,
 *   predicted: number | null }} Row shares of the device's memory, 0 to 1
 */

/**
 * Groups consecutive blocks of the same device.
 * @param {unknown} blocks index of the device of every block
 * @returns {Run[]}
 */
export function runsOf(blocks) {
  /** @type {Run[]} */
  const runs = [];
  list(blocks).forEach((device, block) => {
    const last = runs.at(-1);
    if (last && last.device === device) last.to = block;
    else runs.push({ device, from: block, to: block });
  });
  return runs;
}

/** @param {Run} run @returns {string} "3" or "0–19" */
export function blocksText({ from, to }) {
  return from === to ? `${from}` : `${from}–${to}`;
}

/**
 * Describes a copy of the model: the devices of its embeddings, head and blocks.
 * @param {Split} split
 * @param {unknown} blocks one of `copies`
 */
export function mapText(split, blocks) {
  const name = (/** @type {number} */ device) => String(list(split.devices)[device]?.name ?? "?");
  const runs = runsOf(blocks);
  const parts = runs.map((run) =>
    t("blocks {blocks} on {device}", { blocks: blocksText(run), device: name(run.device) }),
  );
  const [first, last] = [runs[0]?.device ?? 0, runs.at(-1)?.device ?? 0].map(name);
  const ends =
    first === last
      ? t("embeddings and head on {device}", { device: first })
      : t("embeddings on {first}, head on {last}", { first, last });
  return [ends, ...parts].join(", ");
}

/**
 * The split, with memory predictions from the training's plan.
 * @param {Split} split
 * @param {import("../fit/sentences.mjs").Device[]} needs
 * @returns {Split}
 */
export function planned(split, needs) {
  const memory = { ...split.memory };
  for (const { name, needed } of needs)
    if (memory[name]) memory[name] = { ...memory[name], predicted: needed };
  return { ...split, memory };
}

/**
 * A row per device.
 * @param {Split} split
 * @returns {Row[]}
 */
export function deviceRows(split) {
  return list(split.devices).map((device, index) => {
    const name = String(device?.name ?? "?");
    const memory = split.memory?.[name] ?? {};
    const whole = largest(memory);
    const part = (/** @type {unknown} */ bytes) => (known(bytes) && whole ? bytes / whole : null);
    return {
      name,
      title: String(device?.title ?? ""),
      holds: holds(split, index),
      text: memoryText(memory),
      now: part(memory.weights),
      predicted: part(memory.predicted),
    };
  });
}

/** Bytes of a full bar: the device's memory, or the needed bytes if they are more. @param {Memory} memory */
function largest({ weights, predicted, total }) {
  return Math.max(...[weights, predicted, total].filter(known), 0);
}

/** @param {Memory} memory */
function memoryText({ weights, predicted, total }) {
  const parts = [
    known(weights) ? t("{size} weights", { size: gib(weights) }) : "",
    known(predicted) ? t("{size} predicted peak", { size: gib(predicted) }) : "",
    known(total) ? t("of {size}", { size: gib(total) }) : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

/** The blocks on a device, over all copies. @param {Split} split @param {number} device */
function holds(split, device) {
  const copies = list(split.copies).map(runsOf);
  const mine = copies.map((runs) => runs.filter((run) => run.device === device));
  const first = copies.some((runs) => runs[0]?.device === device);
  const last = copies.some((runs) => runs.at(-1)?.device === device);
  const texts = [...new Set(mine.flat().map(blocksText))];
  const control = first && known(split.control_blocks) && split.control_blocks > 0;
  const copied = mine.filter((runs) => runs.length).length;
  const parts = [
    endsText(first, last),
    control ? t("{count} control blocks", { count: Number(split.control_blocks) }) : "",
    texts.length ? t("blocks {blocks}", { blocks: texts.join(", ") }) : "",
    copied > 1 ? t("{count} copies", { count: copied }) : "",
  ];
  return parts.filter(Boolean).join(", ");
}

/** @param {boolean} first @param {boolean} last */
function endsText(first, last) {
  if (first && last) return t("embeddings, head");
  return first ? t("embeddings") : last ? t("head") : "";
}

/** What the memory figures include. @param {Split} split */
export function coverText(split) {
  const predicted = Object.values(split.memory ?? {}).some((one) => known(one?.predicted));
  return predicted
    ? t("Weights as stored in memory, and the predicted peak of a training step.")
    : t(
        "Weights as stored in memory, from the file's header. Training adds LoRA, optimizer and activations, which depend on the clips.",
      );
}
