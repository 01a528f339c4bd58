// @ts-check
/** Texts of a plan: whether a training fits in memory, memory measures, time, and suggestions. Pure. */

import { counted, t } from "../page/words.mjs";
import { clock, fileSize, gib, known, short } from "../run/format.mjs";

/**
 * The server's response (nodes/routes/plan.py).
 * @typedef {{ name: string, needed: number, room: number | null, total: number | null }} Device
 * @typedef {Record<string, number | string | boolean>} Settings widget values by name
 * @typedef {{ fits: boolean | null, size?: string, rank?: number, lora_bytes?: number, preview?: string | null, devices: Device[],
 *   host?: { needed: number, room: number | null, held?: string },
 *   measures?: { offload_inputs?: boolean, blocks_to_swap?: number, gradient_checkpointing?: boolean },
 *   card?: string | null, step_seconds?: number | null, seconds?: number | null, suggestions: Settings[] | null, more?: boolean,
 *   own_runs?: Record<string, Record<string, number>>, notes?: string[], reason?: string,
 *   placement?: { mode: string, chosen: string }, cards?: import("../cards/timeline.mjs").Step | null,
 *   routes?: { kept: number[], flops_saved: number, time_saved: number | null } | null,
 *   run?: import("./standing.mjs").Standing | null }} Plan `own_runs`: ratios by which earlier runs correct the plan, by
 *   device and phase; `cards`: timeline of each GPU in a step; `held`: host memory held by ComfyUI, with its models' names;
 *   `notes`: sentences on unknowns of the plan; `routes`: share of the tokens in each layer, and savings by token routes;
 *   `reason`: why there is no plan; `chosen`: why auto chose the split mode
 */

/** Settings that let the planner offload. */
const AUTOMATIC = ["memory", "offload_activations", "blocks_to_swap"];

/** Settings for gradient checkpointing of all blocks. */
const CHECKPOINTED = ["gradient_checkpointing", "unchecked_blocks"];

/** Share of free host memory above which the text mentions its use, even if it fits. */
const WORTH_SAYING = 0.5;

/** Times of a step below so many seconds are not shown. */
const SOONEST = 0.01;

/** The phase key of a ratio of time. */
const TIME = "seconds";

/** The memory that decides whether the training fits: host memory if only it is too small, else the fullest device. @param {Plan} plan @returns {Device | null} */
export function fullest({ devices, host }) {
  const lacks = (/** @type {{ needed: number, room: number | null }} */ one) =>
    known(one.room) && one.needed > one.room;
  if (host && lacks(host) && !devices.some(lacks)) return { ...host, name: "", total: host.room };
  const share = (/** @type {Device} */ one) => one.needed / (one.room || 1);
  return [...devices].sort((a, b) => share(b) - share(a))[0] ?? null;
}

/** @param {Plan} plan @returns {string} */
export function headline(plan) {
  const device = fullest(plan);
  if (!device) return "";
  const { name, needed, room, total } = device;
  const values = { device: name, needed: gib(needed), room: gib(room), total: gib(total) };
  if (!name) return t("Does not fit: {needed} of CPU RAM needed, {room} free", values);
  if (plan.devices.length < 2)
    return plan.fits
      ? t("Fits: {needed} needed, {room} free", values)
      : t("Does not fit: {needed} needed, {room} free of {total}", values);
  return plan.fits
    ? t("Fits: {needed} needed, {room} free on {device}", values)
    : t("Does not fit: {needed} needed, {room} free of {total} on {device}", values);
}

/** Whether the planner leaves a part of the device to other programs. @param {Device | null} device */
function keeps(device) {
  return known(device?.total) && known(device?.room) && device.total > device.room;
}

/** Further sentences on a plan. @param {Plan} plan @returns {string[]} */
export function details(plan) {
  const { host, measures = {}, step_seconds: pace, seconds } = plan;
  const device = fullest(plan);
  const said = [];
  if (plan.size)
    said.push(t("Largest clips {size}, rank {rank}.", { size: plan.size, rank: plan.rank ?? "" }));
  if (known(plan.lora_bytes))
    said.push(t("LoRA file {size}.", { size: fileSize(plan.lora_bytes) }));
  if (plan.preview) said.push(t("Previews {size}.", { size: plan.preview }));
  if (device && !plan.fits && keeps(device)) {
    const kept = gib((device.total ?? 0) - (device.room ?? 0));
    said.push(t("{kept} are reserved for the driver and other programs.", { kept }));
  }
  const done = [
    measures.gradient_checkpointing ? t("gradient checkpointing") : "",
    measures.offload_inputs ? t("activations offloaded to host memory") : "",
    measures.blocks_to_swap > 0
      ? counted(
          measures.blocks_to_swap,
          "1 block offloaded (block swap)",
          "{n} blocks offloaded (block swap)",
        )
      : "",
  ].filter(Boolean);
  if (done.length) said.push(t("Saves memory by: {measures}.", { measures: done.join(", ") }));
  if (device?.name && host && known(host.room) && host.needed > WORTH_SAYING * host.room) {
    const values = { needed: gib(host.needed), free: gib(host.room) };
    said.push(t("Host memory: {needed} needed, {free} free.", values));
  }
  if (host?.held) {
    const values = { held: host.held };
    said.push(
      t("ComfyUI uses {held} of CPU RAM; training frees the part that no node needs.", values),
    );
  }
  if (known(pace) && pace >= SOONEST) {
    said.push(paceText(short(pace), known(seconds) && seconds >= 1 ? clock(seconds) : "", plan));
  }
  return [...said, ...measured(plan), ...(plan.notes ?? [])];
}

/**
 * The time of a step and of the run; if the CPU simulates a GPU, with that GPU's name.
 * @param {string} pace
 * @param {string} time of the run, empty if unknown
 * @param {Plan} plan
 */
function paceText(pace, time, { devices, card }) {
  const values = { pace, time, card: card ?? "" };
  if (devices.some(({ name }) => name === "cpu"))
    return time
      ? t("On a card such as {card}: about {pace} s per step, {time} in all.", values)
      : t("On a card such as {card}: about {pace} s per step.", values);
  return time
    ? t("About {pace} s per step, {time} in all ({card}).", values)
    : t("About {pace} s per step ({card}).", values);
}

/** Names the figures corrected by measurements of earlier runs. @param {Plan} plan @returns {string[]} */
function measured({ own_runs = {} }) {
  const phases = Object.values(own_runs).flatMap(Object.keys);
  if (!phases.length) return [];
  const timed = phases.includes(TIME);
  const weighed = phases.some((phase) => phase !== TIME);
  if (timed && weighed) return [t("Memory and time as measured in earlier runs on this card.")];
  return timed
    ? [t("Time as measured in earlier runs on this card.")]
    : [t("Memory as measured in earlier runs on this card.")];
}

/** Text of the bars of token routes. @param {NonNullable<Plan["routes"]>} routes */
export function routesText({ kept, flops_saved: saved }) {
  const values = { last: kept.length - 1, saved: Math.round(100 * saved) };
  return t("Tokens that layers 0 to {last} process: {saved} % less arithmetic in a step.", values);
}

/** The label of a suggestion's button. @param {Settings} settings */
export function suggestionText(settings) {
  const { num_frames: frames, width, height, rank, scheme } = settings;
  const changes = [
    AUTOMATIC.some((name) => name in settings) ? t("memory auto") : "",
    CHECKPOINTED.some((name) => name in settings) ? t("gradient checkpointing") : "",
    width && height ? `${width} × ${height}` : "",
    frames > 0 ? counted(frames, "1 frame", "{n} frames") : "",
    rank ? t("rank {rank}", { rank }) : "",
    settings.preview_every_n_steps === 0 ? t("no previews") : "",
  ].filter(Boolean);
  if (!changes.length) return scheme ? t("use fp8") : "";
  const what = [...(scheme ? ["fp8"] : []), ...changes].join(" + ");
  return t("{what} fits", { what });
}
