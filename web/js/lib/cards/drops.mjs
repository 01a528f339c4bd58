// @ts-check
/** Files dropped on a node: the canvas handles title and widgets, the page handles the card. */

import { fallen, hasFiles, mayTake, take } from "../files/dropped_clips.mjs";
import { asOneStep, turn } from "../page/graph.mjs";

/**
 * @typedef {import("../page/graph.mjs").GraphNode} GraphNode
 * @typedef {import("./dataset_card.mjs").DatasetCard} DatasetCard
 */

const UPLOAD = "/upload/image";
const FOLDER = "folder";

/**
 * Lets the user drop clips on a dataset node.
 * @param {GraphNode} node
 * @param {DatasetCard} card
 * @param {{ app: any, api: any }} page
 */
export function takeDrops(node, card, { app, api }) {
  const doors = {
    taken: () => foldersOf(api, node),
    upload: (/** @type {File} */ file, /** @type {string} */ folder) => upload(api, file, folder),
    most: () => Number(api.getServerFeature?.("max_upload_size")) || Number.POSITIVE_INFINITY,
    chosen: async (/** @type {string} */ folder) => {
      await app.refreshComboInNodes?.();
      const linked = node.inputs?.some((one) => one.widget?.name === FOLDER && one.link != null);
      return !linked && asOneStep(node, () => turn(node, FOLDER, folder));
    },
    say: (/** @type {string} */ text, bad = false) => card.tell(text, bad),
  };
  /** Processes one drop after the other. */
  let before = Promise.resolve(false);
  const drop = (/** @type {DragEvent} */ { dataTransfer }) => {
    if (!mayTake(dataTransfer)) return Promise.resolve(false); // not for this pack
    const fell = fallen(dataTransfer); // at once: an event's data is lost after the event
    before = before.then(async () => take(await fell, doors)).catch(() => false);
    return before;
  };
  node.onDragOver = (/** @type {DragEvent} */ event) => hasFiles(event);
  node.onDragDrop = drop;
  card.element.addEventListener("dragover", (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  card.element.addEventListener("drop", (event) => {
    // A Vue node receives drops on all of its elements.
    if (card.element.closest("[data-node-id]") || !mayTake(event.dataTransfer)) return;
    event.preventDefault();
    event.stopPropagation();
    drop(event);
  });
}

/** The existing folders, from the server. @param {any} api @param {GraphNode} node */
async function foldersOf(api, node) {
  const id = String(node.comfyClass);
  const answer = await api.fetchApi(`/object_info/${encodeURIComponent(id)}`, {
    cache: "no-store",
  });
  const inputs = (await answer.json())?.[id]?.input ?? {};
  const listed = inputs.required?.[FOLDER] ?? inputs.optional?.[FOLDER];
  const names = Array.isArray(listed?.[0]) ? listed[0] : listed?.[1]?.options;
  if (!Array.isArray(names)) throw new Error(String(answer.status));
  return names.map(String);
}

/** @param {any} api @param {File} file @param {string} folder below input/ @returns {Promise<string>} its name there */
async function upload(api, file, folder) {
  const body = new FormData();
  body.append("image", file, file.name);
  body.append("subfolder", folder);
  body.append("type", "input");
  const answer = await api.fetchApi(UPLOAD, { method: "POST", body });
  if (!answer.ok) throw new Error(`${file.name}: ${answer.status} ${answer.statusText}`);
  return String((await answer.json()).name);
}
