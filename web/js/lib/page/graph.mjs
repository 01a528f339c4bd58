// @ts-check
/** Nodes of the canvas, including subgraphs. Pure. */

/**
 * The members of LiteGraph's graphs and nodes that this pack uses.
 * @typedef {{ id?: string, nodes?: GraphNode[], _nodes?: GraphNode[], getNodeById: (id: number) => GraphNode | null,
 *   add?: Function, trigger?: Function, beforeChange?: Function, afterChange?: Function, canvasAction?: Function }} Graph
 * @typedef {{ id: number, bgcolor?: string, comfyClass?: string, hideOutputImages?: boolean, title?: string, onDrawBackground?: Function, graph?: Graph,
 *   subgraph?: Graph, type?: string, mode?: number, pos?: number[], size?: number[], connect?: Function, getInputLink?: Function,
 *   widgets?: { name: string, label?: string, tooltip?: string, value: unknown, element?: HTMLElement, serialize?: boolean, callback?: Function,
 *   options?: { values?: unknown, tooltip?: string } }[], properties?: Record<string, unknown>, computeSize?: Function, setSize?: Function,
 *   inputs?: { name: string, link?: number | null, widget?: { name: string } }[], outputs?: { name: string, links?: number[] | null }[],
 *   wanTrainerStatus?: HTMLElement, wanTrainerFailure?: HTMLElement, wanTrainerPanel?: import("../panel/panel.mjs").Panel,
 *   wanTrainerCard?: import("../cards/card.mjs").Card, wanTrainerFacts?: Record<string, any>, addDOMWidget: Function,
 *   onDragOver?: Function, onDragDrop?: Function, getInputNode?: Function, onConnectionsChange?: Function, onRemoved?: Function, setDirtyCanvas?: Function }} GraphNode
 */

/**
 * The node with an id, or null. Inside subgraphs the id is a path such as "3:1".
 * @template {{ subgraph?: { getNodeById: (id: number) => T | null } }} T
 * @param {{ getNodeById: (id: number) => T | null } | undefined} root
 * @param {string | number} id
 * @returns {T | null}
 */
export function findNode(root, id) {
  let graph = root;
  /** @type {T | null} */
  let node = null;
  for (const part of String(id).split(":")) {
    node = graph?.getNodeById(Number(part)) ?? null;
    graph = node?.subgraph;
  }
  return node;
}

/**
 * All nodes of a graph, including subgraphs.
 * @template {{ subgraph?: { nodes?: T[], _nodes?: T[] } }} T
 * @param {{ nodes?: T[], _nodes?: T[] } | undefined} root
 * @returns {Generator<T>}
 */
export function* nodes(root) {
  for (const node of root?._nodes ?? root?.nodes ?? []) {
    yield node;
    if (node.subgraph) yield* nodes(node.subgraph);
  }
}

/**
 * All nodes of a graph with their ids in messages; inside subgraphs the id is a path such as "3:1".
 * @template {{ id: number | string, subgraph?: { nodes?: T[], _nodes?: T[] } }} T
 * @param {{ nodes?: T[], _nodes?: T[] } | undefined} root
 * @param {string} before path of the subgraph
 * @returns {Generator<{ id: string, node: T }>}
 */
export function* placed(root, before = "") {
  for (const node of root?._nodes ?? root?.nodes ?? []) {
    const id = `${before}${node.id}`;
    yield { id, node };
    if (node.subgraph) yield* placed(node.subgraph, `${id}:`);
  }
}

/**
 * Changes a graph as one step of undo. The page records a step at events of its canvas.
 * @template T
 * @param {GraphNode} node of the graph
 * @param {() => T} task
 */
export function asOneStep({ graph }, task) {
  graph?.beforeChange?.();
  graph?.canvasAction?.((/** @type {any} */ canvas) => canvas.emitBeforeChange?.());
  const done = task();
  graph?.canvasAction?.((/** @type {any} */ canvas) => canvas.emitAfterChange?.());
  graph?.afterChange?.();
  return done;
}

/**
 * Sets a widget and calls its callback, as user input does; false if the node has no such widget.
 * @param {GraphNode} node
 * @param {string} name
 * @param {string | number} value
 */
export function turn(node, name, value) {
  const widget = node.widgets?.find((one) => one.name === name);
  if (!widget) return false;
  widget.value = value;
  widget.callback?.(value);
  node.setDirtyCanvas?.(true, true);
  return true;
}

/**
 * Writes the current heights of nodes into the page's undo state. A node grows when a text arrives late; without this, the
 * page would record the growth as a step of undo.
 * @param {any} state the page's undo state of the graph
 * @param {Iterable<GraphNode>} grown
 */
export function recordHeights(state, grown) {
  for (const { id, graph, size } of grown) {
    const parts = state?.definitions?.subgraphs ?? [];
    const place = parts.find((/** @type {any} */ part) => part.id === graph?.id) ?? state;
    const known = place?.nodes?.find((/** @type {any} */ one) => one.id === id);
    if (known?.size && size) known.size[1] = size[1];
  }
}
