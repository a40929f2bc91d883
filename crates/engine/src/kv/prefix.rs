//! The prefix cache: a tree of pages, found by their tokens.
//!
//! A node is one page of positions: its token ids and its page of each KV group. A path from the
//! root spells a prefix. Full nodes (`page_len` tokens) may have children, shorter ones are leaves.
//! Right below the root are the salts, nodes without pages: rows computed under one salt are never
//! found under another.
//!
//! Children are in the order of their tokens. A binary search finds the child with the same page.
//! If there is none, it finds two neighbours, and one of them has the longest common start. A hash
//! would find only the former. Token ids are compared, so two prefixes cannot be confused.
//!
//! In a window group a node may have no page ([`PAGE_NONE`]): it fell out of the window before the
//! node was created, or was evicted. A prefix of length `L` is usable only if each window group
//! still holds the pages of the last `window - 1` positions before `L`, to which the row at
//! position `L` attends.
//!
//! With recurrent layers, a node may also hold the state at its end, as if states were pages of one
//! more group. A prefix is then usable only up to a node with a state.
//!
//! For eviction each group has a list of the nodes with a page in it, the coldest first. The list
//! is linked through the nodes, so using, adding and evicting need no search and no memory.

mod check;

use device::{KvLayout, PAGE_NONE, STATE_NONE};

use super::pages::PagePool;
use super::tables::PageTables;

/// Index of a node.
pub type NodeId = u32;

const ROOT: NodeId = 0;

/// No node.
const NIL: NodeId = NodeId::MAX;

/// A node: one page of positions, or a salt.
#[derive(Clone, Debug)]
struct Node {
    /// Tokens of the page, at most `page_len`; a salt's two halves; empty at the root and in unused
    /// entries.
    tokens: Box<[u32]>,
    /// `(n_groups + 1)` pages, and the state at the node's end.
    pages: Box<[u32]>,
    /// `(n_groups + 1)` neighbours in each group's list, if the node has a page in the group.
    links: Box<[Link]>,
    parent: NodeId,
    /// Children in the order of their tokens.
    children: Vec<NodeId>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    colder: NodeId,
    hotter: NodeId,
}

/// List of the nodes that have a page in a group, in the order of their last use.
#[derive(Clone, Copy, Debug)]
struct List {
    coldest: NodeId,
    hottest: NodeId,
    len: usize,
}

/// A usable cached prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Number of positions that need not be computed.
    pub n_tokens: usize,
    /// Nodes that hold these positions, from the first page on; the last one may be used in part.
    pub path: Vec<NodeId>,
}

/// The tree.
#[derive(Clone, Debug)]
pub struct PrefixCache {
    page_len: usize,
    /// Window of each group; `None`: full attention.
    windows: Vec<Option<usize>>,
    has_states: bool,
    nodes: Vec<Node>,
    unused: Vec<NodeId>,
    /// `(n_groups + 1)` lists of nodes by use.
    lists: Vec<List>,
}

impl PrefixCache {
    /// An empty cache for the groups of a layout.
    pub fn new(layout: &KvLayout, page_len: usize) -> PrefixCache {
        let windows: Vec<_> = layout.groups.iter().map(|g| g.window).collect();
        let empty = List { coldest: NIL, hottest: NIL, len: 0 };
        let mut cache = PrefixCache {
            page_len,
            lists: vec![empty; windows.len() + 1],
            windows,
            has_states: !layout.states.is_empty(),
            nodes: Vec::new(),
            unused: Vec::new(),
        };
        cache.nodes.push(cache.new_node(NIL, [].into()));
        cache
    }

    fn new_node(&self, parent: NodeId, tokens: Box<[u32]>) -> Node {
        let n_groups = self.lists.len();
        Node {
            tokens,
            pages: vec![PAGE_NONE; n_groups].into(),
            links: vec![Link { colder: NIL, hotter: NIL }; n_groups].into(),
            parent,
            children: Vec::new(),
        }
    }

    /// Number of pages of positions in the tree.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len() - 1 - self.unused.len() - self.node(ROOT).children.len()
    }

    /// Page of a node in a group, or [`PAGE_NONE`].
    pub fn page(&self, node: NodeId, group: usize) -> u32 {
        self.nodes[node as usize].pages[group]
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    fn is_salt(&self, id: NodeId) -> bool {
        self.node(id).parent == ROOT
    }

    /// Tokens and salt of every path to a leaf, the most recently used first.
    pub fn leaves(&self) -> Vec<(u64, Vec<u32>)> {
        let mut leaves = Vec::new();
        let mut at = self.lists.first().map_or(NIL, |list| list.hottest);
        while at != NIL {
            let node = self.node(at);
            if node.children.is_empty() {
                let up = std::iter::successors(Some(at), |id| Some(self.node(*id).parent));
                let path: Vec<NodeId> = up.take_while(|id| *id != ROOT).collect();
                if let Some((salt, path)) = path.split_last()
                    && let [high, low] = *self.node(*salt).tokens
                {
                    let tokens = path.iter().rev().flat_map(|id| self.node(*id).tokens.iter().copied());
                    leaves.push((u64::from(high) << 32 | u64::from(low), tokens.collect()));
                }
            }
            at = node.links[0].colder;
        }
        leaves
    }

    /// Number of `tokens` that are cached and usable. Allocates nothing, and does not count as a
    /// use.
    pub fn n_usable(&self, salt: u64, tokens: &[u32]) -> usize {
        // Windows are checked from the end of the path upwards, through the parents.
        let (mut at, mut n_tokens) = self.walk(salt, tokens, |_| {});
        while n_tokens > 0 {
            match self.missing(at, n_tokens) {
                None if self.has_states_at(at, n_tokens) => break,
                None => {
                    n_tokens = (n_tokens - 1) / self.page_len * self.page_len;
                    at = self.node(at).parent;
                }
                Some(page_index) => {
                    for _ in page_index..n_tokens.div_ceil(self.page_len) {
                        at = self.node(at).parent;
                    }
                    n_tokens = page_index * self.page_len;
                }
            }
        }
        n_tokens
    }

    /// The longest usable prefix of `tokens`. This counts as a use of its nodes.
    pub fn find(&mut self, salt: u64, tokens: &[u32]) -> Match {
        let mut path = Vec::new();
        self.walk(salt, tokens, |id| path.push(id));
        let n_tokens = self.n_usable(salt, tokens);
        path.truncate(n_tokens.div_ceil(self.page_len));
        self.touch(path.last().copied());
        Match { n_tokens, path }
    }

    /// Follow `tokens` as far as there are nodes, whatever pages they have. Returns the last node
    /// and the number of tokens.
    fn walk(&self, salt: u64, tokens: &[u32], mut visit: impl FnMut(NodeId)) -> (NodeId, usize) {
        let Ok(index) = self.search(ROOT, &salt_tokens(salt)) else { return (ROOT, 0) };
        let (mut at, mut n_tokens) = (self.node(ROOT).children[index], 0);
        while let Some((child, n)) = self.best_child(at, &tokens[n_tokens..]) {
            visit(child);
            (at, n_tokens) = (child, n_tokens + n);
            if n < self.page_len {
                break;
            }
        }
        (at, n_tokens)
    }

    /// Returns true if states allow a sequence to continue after the first `n_tokens` tokens, which
    /// end within `node`.
    fn has_states_at(&self, node: NodeId, n_tokens: usize) -> bool {
        let is_whole = (n_tokens - 1) % self.page_len + 1 == self.node(node).tokens.len();
        !self.has_states || is_whole && self.state(node) != STATE_NONE
    }

    /// The state at the end of a node, or [`STATE_NONE`].
    pub fn state(&self, node: NodeId) -> u32 {
        self.page(node, self.windows.len())
    }

    /// The last missing page, up to the node `last`, that a row at position `n_tokens` attends to.
    /// No prefix that extends beyond it is usable.
    fn missing(&self, last: NodeId, n_tokens: usize) -> Option<usize> {
        let groups = self.windows.iter().enumerate();
        let of_group = groups.filter_map(|(group, window)| {
            // In a group with full attention every node has its page.
            let first = (n_tokens + 1).saturating_sub((*window)?) / self.page_len;
            let mut at = last;
            for page_index in (first..n_tokens.div_ceil(self.page_len)).rev() {
                if self.page(at, group) == PAGE_NONE {
                    return Some(page_index);
                }
                at = self.node(at).parent;
            }
            None
        });
        of_group.min()
    }

    /// Insert the computed `tokens` of a slot with its pages, and the state at their end
    /// ([`STATE_NONE`] if there is none). This counts as a use of their nodes.
    ///
    /// If the cache has a full page of the same tokens already, the sequence releases its own and
    /// shares the cache's. So a sequence that holds the page of a node holds the pages of the nodes
    /// above too. Pages that no sequence holds can be evicted leaf by leaf.
    pub(super) fn insert(
        &mut self,
        salt: u64,
        tokens: &[u32],
        state: u32,
        slot: usize,
        tables: &mut PageTables,
        pools: &mut [PagePool],
    ) {
        if tokens.is_empty() {
            return;
        }
        let states = self.windows.len();
        let mut at = self.salt_node(salt);
        for (page_index, chunk) in tokens.chunks(self.page_len).enumerate() {
            let (child, n) = self.best_child(at, chunk).unwrap_or((NIL, 0));
            // The node may exist, perhaps with more tokens; or as a shorter leaf, which this page
            // then replaces.
            let is_here = n == chunk.len();
            let is_shorter = child != NIL && n == self.node(child).tokens.len();
            let id = match () {
                () if is_here => child,
                () if is_shorter => {
                    // The old state belongs to the old end.
                    let before = self.state(child);
                    if before != STATE_NONE {
                        self.set_page(child, states, STATE_NONE);
                        pools[states].release(before);
                    }
                    self.detach(child);
                    self.attach(child, at, chunk)
                }
                () => {
                    let id = self.unused_node();
                    self.attach(id, at, chunk)
                }
            };
            for (group, pool) in pools.iter_mut().enumerate().take(self.windows.len()) {
                let ours = tables.page(slot, group, page_index);
                let cached = self.page(id, group);
                if is_here && cached != PAGE_NONE {
                    if ours != PAGE_NONE && ours != cached && chunk.len() == self.page_len {
                        pool.share(cached);
                        pool.release(ours);
                        tables.set(slot, group, page_index, cached);
                    }
                    continue;
                }
                if is_here && chunk.len() < self.node(id).tokens.len() {
                    continue; // our page lacks positions that the node has
                }
                if ours != PAGE_NONE {
                    pool.share(ours);
                }
                self.set_page(id, group, ours);
                if cached != PAGE_NONE {
                    pool.release(cached);
                }
            }
            at = id;
        }
        // A longer node ends elsewhere.
        let is_end = (tokens.len() - 1) % self.page_len + 1 == self.node(at).tokens.len();
        if state != STATE_NONE && is_end && self.state(at) == STATE_NONE {
            pools[states].share(state);
            self.set_page(at, states, state);
        }
        self.touch(Some(at));
        self.remove_empty_leaves(at);
    }

    /// Index of the child with these tokens, or, as an error, the index at which it would be
    /// inserted.
    fn search(&self, parent: NodeId, tokens: &[u32]) -> Result<usize, usize> {
        self.node(parent).children.binary_search_by(|&child| (*self.node(child).tokens).cmp(tokens))
    }

    /// The child that shares the longest start with `tokens`, and the length of that start. Of
    /// several, one that is no longer than the start is preferred.
    fn best_child(&self, at: NodeId, tokens: &[u32]) -> Option<(NodeId, usize)> {
        let children = &self.node(at).children;
        let page = &tokens[..tokens.len().min(self.page_len)];
        let index = match self.search(at, page) {
            Ok(index) => return Some((children[index], page.len())),
            Err(index) => index,
        };
        let neighbours = [index.checked_sub(1), Some(index)].into_iter().flatten();
        let shared = neighbours.filter_map(|index| {
            let child = *children.get(index)?;
            let other = &self.node(child).tokens;
            let n = common_len(other, page);
            Some((child, n, n == other.len()))
        });
        shared.max_by_key(|&(_, n, is_whole)| (n, is_whole)).filter(|s| s.1 > 0).map(|(id, n, _)| (id, n))
    }

    /// The node of a salt, created if there is none.
    fn salt_node(&mut self, salt: u64) -> NodeId {
        match self.search(ROOT, &salt_tokens(salt)) {
            Ok(index) => self.node(ROOT).children[index],
            Err(_) => {
                let id = self.unused_node();
                self.attach(id, ROOT, &salt_tokens(salt))
            }
        }
    }

    fn unused_node(&mut self) -> NodeId {
        self.unused.pop().unwrap_or_else(|| {
            self.nodes.push(self.new_node(NIL, [].into()));
            self.unused.reserve(self.nodes.len()); // so that evicting allocates nothing
            (self.nodes.len() - 1) as NodeId
        })
    }

    /// Attach an unattached node as a child with these tokens.
    fn attach(&mut self, id: NodeId, parent: NodeId, tokens: &[u32]) -> NodeId {
        let (Ok(index) | Err(index)) = self.search(parent, tokens);
        self.nodes[parent as usize].children.insert(index, id);
        let node = &mut self.nodes[id as usize];
        (node.parent, node.tokens) = (parent, tokens.into());
        id
    }

    fn detach(&mut self, id: NodeId) {
        let parent = self.node(id).parent;
        if let Ok(index) = self.search(parent, &self.node(id).tokens) {
            self.nodes[parent as usize].children.remove(index);
        }
    }

    /// Set or clear a node's page in a group, and update the group's list.
    fn set_page(&mut self, id: NodeId, group: usize, page: u32) {
        let before = std::mem::replace(&mut self.nodes[id as usize].pages[group], page);
        match (before == PAGE_NONE, page == PAGE_NONE) {
            (true, false) => self.link_hottest(id, group),
            (false, true) => self.unlink(id, group),
            (true, true) | (false, false) => {}
        }
    }

    fn link_hottest(&mut self, id: NodeId, group: usize) {
        let colder = std::mem::replace(&mut self.lists[group].hottest, id);
        self.nodes[id as usize].links[group] = Link { colder, hotter: NIL };
        match colder {
            NIL => self.lists[group].coldest = id,
            _ => self.nodes[colder as usize].links[group].hotter = id,
        }
        self.lists[group].len += 1;
    }

    fn unlink(&mut self, id: NodeId, group: usize) {
        let Link { colder, hotter } = self.node(id).links[group];
        match colder {
            NIL => self.lists[group].coldest = hotter,
            _ => self.nodes[colder as usize].links[group].hotter = hotter,
        }
        match hotter {
            NIL => self.lists[group].hottest = colder,
            _ => self.nodes[hotter as usize].links[group].colder = colder,
        }
        self.lists[group].len -= 1;
    }

    fn make_hottest(&mut self, id: NodeId, group: usize) {
        if self.page(id, group) != PAGE_NONE {
            self.unlink(id, group);
            self.link_hottest(id, group);
        }
    }

    /// Count a use of the path to a node. In a full group the end of the path is colder: a prefix
    /// without its end is useful, without its start it is not. In a window group the start is
    /// colder, since later rows attend to the end.
    fn touch(&mut self, last: Option<NodeId>) {
        let Some(last) = last else { return };
        for group in 0..self.lists.len() {
            let is_window = self.windows.get(group).is_none_or(Option::is_some);
            // Link upwards, either each node hotter than the one below it, or each right below the
            // hottest one before it.
            let mut hotter = NIL;
            let mut at = last;
            while at != ROOT && !self.is_salt(at) {
                if self.page(at, group) != PAGE_NONE {
                    self.unlink(at, group);
                    match is_window && hotter != NIL {
                        true => self.link_below(at, hotter, group),
                        false => self.link_hottest(at, group),
                    }
                    hotter = at;
                }
                at = self.node(at).parent;
            }
        }
    }

    /// Insert a node right before a hotter one.
    fn link_below(&mut self, id: NodeId, hotter: NodeId, group: usize) {
        let colder = std::mem::replace(&mut self.nodes[hotter as usize].links[group].colder, id);
        self.nodes[id as usize].links[group] = Link { colder, hotter };
        match colder {
            NIL => self.lists[group].coldest = id,
            _ => self.nodes[colder as usize].links[group].hotter = id,
        }
        self.lists[group].len += 1;
    }

    /// Evict the coldest page of a group that no sequence holds, and everything that is useless
    /// without it. Returns false if there is none. Allocates nothing.
    ///
    /// In a full group that is a whole leaf; in a window group it is one page of any node, the
    /// oldest positions first. A page that a sequence holds is in use, so it becomes the hottest,
    /// and the next search does not pass it again.
    pub fn evict(&mut self, group: usize, pools: &mut [PagePool]) -> bool {
        let mut at = self.lists[group].coldest;
        for _ in 0..self.lists[group].len {
            let hotter = self.node(at).links[group].hotter;
            if pools[group].references(self.page(at, group)) > 1 {
                self.make_hottest(at, group);
            } else if self.windows.get(group).is_none_or(Option::is_some) {
                let page = self.page(at, group);
                self.set_page(at, group, PAGE_NONE);
                pools[group].release(page);
                self.remove_empty_leaves(at);
                return true;
            } else if self.node(at).children.is_empty() {
                self.remove_leaf(at, pools);
                return true;
            }
            at = hotter;
        }
        false
    }

    fn remove_leaf(&mut self, id: NodeId, pools: &mut [PagePool]) {
        for (group, pool) in pools.iter_mut().enumerate() {
            let page = self.page(id, group);
            self.set_page(id, group, PAGE_NONE);
            if page != PAGE_NONE {
                pool.release(page);
            }
        }
        let parent = self.node(id).parent;
        self.remove_node(id);
        if self.is_salt(parent) {
            self.remove_empty_leaves(parent);
        }
    }

    fn remove_node(&mut self, id: NodeId) {
        self.detach(id);
        let node = &mut self.nodes[id as usize];
        node.tokens = [].into();
        self.unused.push(id);
    }

    /// Remove a leaf without any page (a salt, or a model with only window groups), and then its
    /// parents that become such leaves.
    fn remove_empty_leaves(&mut self, mut id: NodeId) {
        while id != ROOT
            && self.node(id).children.is_empty()
            && self.node(id).pages.iter().all(|p| *p == PAGE_NONE)
        {
            let parent = self.node(id).parent;
            self.remove_node(id);
            id = parent;
        }
    }

    /// Update the nodes of a page that has moved.
    pub fn move_page(&mut self, group: usize, from: u32, to: u32) {
        let pages = self.nodes.iter_mut().filter_map(|node| node.pages.get_mut(group));
        pages.filter(|page| **page == from).for_each(|page| *page = to);
    }

    /// Evict everything.
    pub fn clear(&mut self, pools: &mut [PagePool]) {
        for id in 1..self.nodes.len() {
            for (group, pool) in pools.iter_mut().enumerate() {
                let page = std::mem::replace(&mut self.nodes[id].pages[group], PAGE_NONE);
                if page != PAGE_NONE {
                    pool.release(page);
                }
            }
            let node = &mut self.nodes[id];
            node.tokens = [].into();
            node.children.clear();
        }
        self.nodes[ROOT as usize].children.clear();
        self.unused.clear();
        self.unused.extend(1..self.nodes.len() as NodeId);
        self.lists.fill(List { coldest: NIL, hottest: NIL, len: 0 });
    }

    /// Number of pages of a group that only the tree holds.
    pub(super) fn n_alone(&self, group: usize, pool: &PagePool) -> usize {
        let pages = self.nodes.iter().skip(1).map(|node| node.pages[group]);
        pages.filter(|page| *page != PAGE_NONE && pool.references(*page) == 1).count()
    }

    /// Add one to `counted[group][page]` for every page held.
    pub fn count_references(&self, counted: &mut [Vec<u32>]) {
        for node in self.nodes.iter().skip(1) {
            for (group, &page) in node.pages.iter().enumerate().filter(|(_, p)| **p != PAGE_NONE) {
                counted[group][page as usize] += 1;
            }
        }
    }
}

/// The two tokens that represent a salt in the tree.
fn salt_tokens(salt: u64) -> [u32; 2] {
    [(salt >> 32) as u32, salt as u32]
}

/// Length of the common start.
pub(crate) fn common_len(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
