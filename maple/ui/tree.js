// A conversation is a tree of messages: each edit and each further answer is a branch, and one path is shown.
// {id, title, leaf, nodes: {id: {id, parent, created, revision, message, removed}}, settings, queue, updated, removed}

// randomUUID is there for secure pages only.
export function freshId() {
  return crypto.randomUUID?.() ?? `${Date.now()}-${Math.random().toString(36).slice(2)}`;
}

export function newConversation(text, settings = {}) {
  const now = Date.now();
  return { id: freshId(), title: titleOf(text), leaf: null, nodes: {}, settings, queue: [], created: now, updated: now, removed: false };
}

export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 48 ? `${line.slice(0, 47)}…` : line;
}

export function append(conversation, message, parent = conversation.leaf) {
  const created = Math.max(Date.now(), (conversation.nodes[parent]?.created ?? 0) + 1);
  const node = { id: freshId(), parent, created, revision: 1, message, removed: false };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  return node;
}

// The nodes that are shown, first to last.
export function path(conversation) {
  return line(conversation, conversation.leaf).filter((node) => !node.removed);
}

function line(conversation, leaf) {
  const found = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) found.push(node);
  return found.reverse();
}

// A message and those that stand in its place on other branches, oldest first.
export function versions(conversation, { parent }) {
  return children(conversation, parent).filter((node) => !node.removed);
}

function children(conversation, parent) {
  return Object.values(conversation.nodes).filter((node) => node.parent === parent)
    .sort((one, other) => one.created - other.created || (one.id < other.id ? -1 : 1));
}

// Shows the branch of a message, as far as it went last.
export function choose(conversation, node) {
  let last = node;
  for (let next = node; next; next = children(conversation, next.id).at(-1)) last = next;
  conversation.leaf = last.id;
}

// Takes a message out of sight, with the results that its calls were given; what follows stays. Answers what went.
export function remove(conversation, node) {
  const shown = path(conversation);
  const gone = [node];
  if (node.message.tool_calls?.length) {
    for (const next of shown.slice(shown.indexOf(node) + 1)) {
      if (next.message.role !== "tool") break;
      gone.push(next);
    }
  }
  for (const one of gone) change(one, { removed: true });
  return gone;
}

export function change(node, facts) {
  Object.assign(node, facts);
  node.revision += 1;
}

// Takes up what another tab has made of the same conversation. Nothing that either has is lost, and what is shown
// here stays shown: it only goes on where the other went on from its end.
export function absorb(mine, theirs) {
  const leaf = mine.leaf;
  for (const [id, node] of Object.entries(theirs.nodes)) {
    if (!(mine.nodes[id]?.revision >= node.revision)) mine.nodes[id] = node;
  }
  if (theirs.updated > mine.updated) {
    const { title, settings, removed, updated } = theirs;
    Object.assign(mine, { title, settings, removed, updated });
  }
  const goesOn = line(mine, theirs.leaf).some((node) => node.id === leaf);
  mine.leaf = goesOn || leaf === null ? theirs.leaf : leaf;
  return mine;
}
