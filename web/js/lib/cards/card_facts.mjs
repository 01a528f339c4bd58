// @ts-check
/** Facts in a node's output for its card: finds them in the history, and checks whether they match the node. Pure. */

import { shortId } from "../page/ids.mjs";
import { isId } from "../run/binding.mjs";

/**
 * Facts as the server wrote them; a card ignores unknown keys.
 * @typedef {Record<string, any>} Facts
 * @typedef {{ name: string, label?: string, value: unknown }[]} Widgets
 * @typedef {{ workflow: string, id: string, kind: string, key: string, widgets: Widgets }} Place
 *   a node: its workflow, its id in the prompt, its class, and the key of the facts in its output
 */

/**
 * Labels of widgets that have changed since the node ran.
 * @param {unknown} asked values of the widgets when it ran, by name
 * @param {Widgets} widgets
 * @returns {string[]}
 */
export function changedSince(asked, widgets) {
  const known = asked && typeof asked === "object" ? Object.entries(asked) : [];
  return known.flatMap(([name, value]) => {
    const widget = widgets.find((one) => one.name === name);
    return widget && widget.value !== value ? [widget.label ?? name] : [];
  });
}

/**
 * The facts in the output of a node.
 * @param {any} output
 * @param {string} key
 * @returns {Facts | null}
 */
export function factsIn(output, key) {
  const facts = output?.[key]?.[0];
  return facts && typeof facts === "object" ? facts : null;
}

/**
 * The newest facts of a node in ComfyUI's history. Without an id of the workflow, only facts that match the node's
 * widgets.
 * @param {unknown} history as /history answers: oldest first
 * @param {Place} place
 * @returns {Facts | null}
 */
export function factsInHistory(history, place) {
  const entries = Object.values(history && typeof history === "object" ? history : {}).reverse();
  for (const entry of entries) {
    const [, , graph, extra] = Array.isArray(entry?.prompt) ? entry.prompt : [];
    const facts = factsIn(entry?.outputs?.[place.id], place.key);
    if (!facts || shortId(graph?.[place.id]?.class_type) !== place.kind) continue;
    const workflow = nameOf(extra?.extra_pnginfo?.workflow?.id);
    if (workflow ? workflow === place.workflow : fits(facts, place)) return facts;
  }
  return null;
}

/**
 * Whether facts match the node's widgets.
 * @param {Facts} facts
 * @param {Place} place
 */
export function fits(facts, place) {
  return changedSince(facts.asked, place.widgets).length === 0;
}

/**
 * The unique id of a workflow; empty if it has none.
 * @param {unknown} id of its graph
 */
export function nameOf(id) {
  return typeof id === "string" && isId(id) ? id : "";
}
