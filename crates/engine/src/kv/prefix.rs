//! The prefix cache: a tree of pages, found by the tokens that are in them.
//!
//! A node is one page of positions: its token ids and its page of each KV group. A path from the root spells a prefix.
//! Full nodes (`page_len` tokens) may have children, shorter ones are leaves. Token ids are compared, never hashes of
//! them, so two prefixes cannot be confused.
//!
//! In a window group a node may have no page ([`PAGE_NONE`]): it fell out of the window before the node was made, or was
//! evicted. A prefix of length `L` is usable only if each window group still holds the pages of the last `window - 1`
//! positions before `L`: what the row at position `L` will look at.

use device::{KvLayout, PAGE_NONE};

use super::pages::PagePool;

/// Index of a node.
pub type NodeId = u32;

const ROOT: NodeId = 0;

/// One page of positions.
#[derive(Clone, Debug)]
struct Node {
    /// At most `page_len`; empty at the root and in unused entries.
    tokens: Box<[u32]>,
    /// `(n_groups)`
    pages: Box<[u32]>,
    parent: NodeId,
    children: Vec<NodeId>,
    /// The cache's clock when it was last matched or inserted.
    last_use: u64,
}

/// A usable prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Positions that need not be computed.
    pub n_tokens: usize,
    /// The nodes that hold them, from the root on; the last one may be used in part.
    pub path: Vec<NodeId>,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    page_len: usize,
    /// Window of each group; `None`: full attention.
    windows: Vec<Option<usize>>,
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    clock: u64,
}

impl PrefixCache {
    /// An empty cache for the groups of a layout.
    pub fn new(layout: &KvLayout, page_len: usize) -> PrefixCache {
        let windows: Vec<_> = layout.groups.iter().map(|g| g.window).collect();
        let root = Node {
            tokens: [].into(),
            pages: vec![PAGE_NONE; windows.len()].into(),
            parent: ROOT,
            children: Vec::new(),
            last_use: 0,
        };
        PrefixCache { page_len, windows, nodes: vec![root], unused: Vec::new(), clock: 0 }
    }

    /// Nodes in the tree.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len() - 1 - self.unused.len()
    }

    /// Page of a node in a group, or [`PAGE_NONE`].
    pub fn page(&self, node: NodeId, group: usize) -> u32 {
        self.nodes[node as usize].pages[group]
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    /// The longest usable prefix of `tokens`. Its nodes count as used now.
    pub fn find(&mut self, tokens: &[u32]) -> Match {
        self.clock += 1;
        let mut found = Match::default();
        let mut at = ROOT;
        loop {
            let rest = &tokens[found.n_tokens..];
            let Some((child, n)) = self.best_child(at, rest) else { break };
            found.path.push(child);
            found.n_tokens += n;
            if n < self.page_len {
                break;
            }
            at = child;
        }
        self.shorten_to_usable(&mut found);
        for &id in &found.path {
            self.nodes[id as usize].last_use = self.clock;
        }
        found
    }

    /// While a page that the row at `n_tokens` would look at is missing, stop before that page: every longer prefix
    /// would need it too.
    fn shorten_to_usable(&self, found: &mut Match) {
        let missing = |found: &Match| {
            let groups = self.windows.iter().enumerate();
            let of_group = groups.filter_map(|(g, w)| {
                let first = w.map_or(0, |w| (found.n_tokens + 1).saturating_sub(w)) / self.page_len;
                let end = found.n_tokens.div_ceil(self.page_len);
                (first..end).rev().find(|&i| self.page(found.path[i], g) == PAGE_NONE)
            });
            of_group.min()
        };
        while let Some(page_index) = missing(found) {
            found.n_tokens = page_index * self.page_len;
            found.path.truncate(page_index);
        }
    }

    /// Remember a sequence: `tokens` whose keys and values are computed, and `table` `(n_groups, pages_per_table)`, its
    /// pages. `freed(group, page)` is called for every page that nobody holds any more.
    ///
    /// Where the cache has a full page of the same tokens already, the sequence gives up its own and shares the cache's.
    /// So a sequence that holds the page of a node holds those of the nodes above too, and whatever no sequence holds can
    /// be evicted, leaf by leaf.
    pub fn insert(
        &mut self,
        tokens: &[u32],
        table: &mut [u32],
        pools: &mut [PagePool],
        mut freed: impl FnMut(usize, u32),
    ) {
        self.clock += 1;
        let n_groups = self.windows.len();
        let pages_per_table = table.len() / n_groups.max(1);
        let mut at = ROOT;
        for (page_index, chunk) in tokens.chunks(self.page_len).enumerate() {
            let (child, n) = self.best_child(at, chunk).unwrap_or((ROOT, 0));
            // The node may be here, perhaps with more tokens; or as a shorter leaf, which this page then replaces.
            let is_here = n == chunk.len();
            let is_shorter = child != ROOT && n == self.node(child).tokens.len();
            let id = if is_here || is_shorter { child } else { self.add_child(at) };
            let node = &mut self.nodes[id as usize];
            node.last_use = self.clock;
            for group in 0..n_groups {
                let ours = &mut table[group * pages_per_table + page_index];
                let cached = &mut node.pages[group];
                if is_here && *cached != PAGE_NONE {
                    if *ours != PAGE_NONE && ours != cached && chunk.len() == self.page_len {
                        pools[group].share(*cached);
                        if pools[group].release(*ours) {
                            freed(group, *ours);
                        }
                        *ours = *cached;
                    }
                    continue;
                }
                if is_here && chunk.len() < node.tokens.len() {
                    continue; // our page lacks positions that the node has
                }
                let before = std::mem::replace(cached, *ours);
                if *ours != PAGE_NONE {
                    pools[group].share(*ours);
                }
                if before != PAGE_NONE && pools[group].release(before) {
                    freed(group, before);
                }
            }
            if !is_here {
                node.tokens = chunk.into();
            }
            at = id;
        }
    }

    /// The child that shares the longest start with `tokens`, and how much.
    fn best_child(&self, at: NodeId, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let shared = self.node(at).children.iter().map(|&c| (c, common_len(&self.node(c).tokens, tokens)));
        shared.max_by_key(|(_, n)| *n).filter(|(_, n)| *n > 0)
    }

    fn add_child(&mut self, parent: NodeId) -> NodeId {
        let pages = vec![PAGE_NONE; self.windows.len()].into();
        let node = Node { tokens: [].into(), pages, parent, children: Vec::new(), last_use: 0 };
        let id = match self.unused.pop() {
            Some(id) => {
                self.nodes[id as usize] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.unused.reserve(self.nodes.len()); // so that evicting allocates nothing
                (self.nodes.len() - 1) as NodeId
            }
        };
        self.nodes[parent as usize].children.push(id);
        id
    }

    /// Let go of the coldest page of a group that no sequence holds, and of what is useless without it. `freed` is called
    /// for each page that nobody holds any more. False if there is none. Allocates nothing.
    ///
    /// In a full group that is a whole leaf: a prefix without its end is useful, without its start it is not. In a window
    /// group it is one page of any node, the oldest positions first among equals.
    pub fn evict(&mut self, group: usize, pools: &mut [PagePool], mut freed: impl FnMut(usize, u32)) -> bool {
        let nodes = self.nodes.iter().enumerate();
        let ours_alone = nodes
            .filter(|(_, n)| n.pages[group] != PAGE_NONE && pools[group].references(n.pages[group]) == 1);
        if self.windows[group].is_none() {
            let coldest = ours_alone.filter(|(_, n)| n.children.is_empty()).min_by_key(|(_, n)| n.last_use);
            let Some((id, _)) = coldest else { return false };
            self.remove_leaf(id as NodeId, pools, &mut freed);
            return true;
        }
        let Some((id, _)) = ours_alone.min_by_key(|(id, n)| (n.last_use, self.depth(*id as NodeId))) else {
            return false;
        };
        let page = std::mem::replace(&mut self.nodes[id].pages[group], PAGE_NONE);
        if pools[group].release(page) {
            freed(group, page);
        }
        self.remove_empty_leaves(id as NodeId, pools);
        true
    }

    fn depth(&self, mut id: NodeId) -> usize {
        let mut depth = 0;
        while id != ROOT {
            id = self.node(id).parent;
            depth += 1;
        }
        depth
    }

    fn remove_leaf(&mut self, id: NodeId, pools: &mut [PagePool], freed: &mut impl FnMut(usize, u32)) {
        let node = &mut self.nodes[id as usize];
        for (group, page) in node.pages.iter_mut().enumerate() {
            let page = std::mem::replace(page, PAGE_NONE);
            if page != PAGE_NONE && pools[group].release(page) {
                freed(group, page);
            }
        }
        node.tokens = [].into();
        let parent = node.parent;
        self.nodes[parent as usize].children.retain(|c| *c != id);
        self.unused.push(id);
    }

    /// A leaf that holds no page at all (models with only window groups) says nothing; nor does its parent after it.
    fn remove_empty_leaves(&mut self, mut id: NodeId, pools: &mut [PagePool]) {
        while id != ROOT
            && self.node(id).children.is_empty()
            && self.node(id).pages.iter().all(|p| *p == PAGE_NONE)
        {
            let parent = self.node(id).parent;
            self.remove_leaf(id, pools, &mut |_, _| {});
            id = parent;
        }
    }

    /// Forget everything.
    pub fn clear(&mut self, pools: &mut [PagePool], mut freed: impl FnMut(usize, u32)) {
        for node in self.nodes.drain(1..) {
            for (group, &page) in node.pages.iter().enumerate() {
                if page != PAGE_NONE && pools[group].release(page) {
                    freed(group, page);
                }
            }
        }
        self.nodes[ROOT as usize].children.clear();
        self.unused.clear();
    }

    /// Add one to `counted[group][page]` for every page held.
    pub fn count_references(&self, counted: &mut [Vec<u32>]) {
        for node in self.nodes.iter().skip(1) {
            for (group, &page) in node.pages.iter().enumerate().filter(|(_, p)| **p != PAGE_NONE) {
                counted[group][page as usize] += 1;
            }
        }
    }

    /// Check the tree's own rules.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut n_reached = 0;
        let mut stack = vec![ROOT];
        while let Some(id) = stack.pop() {
            let node = self.node(id);
            if id != ROOT {
                n_reached += 1;
                if node.tokens.is_empty() || node.tokens.len() > self.page_len {
                    return Err(format!(
                        "node {id} has {} tokens, expected 1 to {}",
                        node.tokens.len(),
                        self.page_len
                    ));
                }
                if !node.children.is_empty() && node.tokens.len() < self.page_len {
                    return Err(format!("node {id} is not full and has children"));
                }
                let lacks = |g: usize| self.windows[g].is_none() && node.pages[g] == PAGE_NONE;
                if let Some(group) = (0..self.windows.len()).find(|&g| lacks(g)) {
                    return Err(format!("node {id} has no page in group {group}, which keeps all positions"));
                }
            }
            for &child in &node.children {
                if self.node(child).parent != id {
                    return Err(format!(
                        "node {child} is a child of {id} and says {}",
                        self.node(child).parent
                    ));
                }
                stack.push(child);
            }
        }
        if n_reached != self.n_nodes() {
            return Err(format!("{n_reached} nodes are reached from the root, expected {}", self.n_nodes()));
        }
        Ok(())
    }
}

/// Length of the common start.
fn common_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
