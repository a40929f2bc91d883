//! Checks of the prefix tree's own rules.

use device::PAGE_NONE;

use super::{Link, NIL, NodeId, PrefixCache, ROOT};

impl PrefixCache {
    /// Check the tree's own rules.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn check(&self) -> Result<(), String> {
        let mut n_reached = 0;
        let mut stack = self.node(ROOT).children.clone();
        let n_salts = stack.len();
        while let Some(id) = stack.pop() {
            let node = self.node(id);
            if !self.is_salt(id) {
                n_reached += 1;
                self.check_node(id)?;
            } else if node.children.is_empty() {
                return Err(format!("salt {id} has no pages"));
            }
            if !node.children.is_sorted_by(|a, b| self.node(*a).tokens < self.node(*b).tokens) {
                return Err(format!("the children of node {id} are not in the order of their tokens"));
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
            return Err(format!(
                "{n_reached} nodes are reached from {n_salts} salts, expected {}",
                self.n_nodes()
            ));
        }
        (0..self.lists.len()).try_for_each(|group| self.check_list(group))
    }

    fn check_node(&self, id: NodeId) -> Result<(), String> {
        let node = self.node(id);
        let n_tokens = node.tokens.len();
        if n_tokens == 0 || n_tokens > self.page_len {
            return Err(format!("node {id} has {n_tokens} tokens, expected 1 to {}", self.page_len));
        }
        if !node.children.is_empty() && n_tokens < self.page_len {
            return Err(format!("node {id} is not full and has children"));
        }
        let lacks = |g: usize| self.windows[g].is_none() && node.pages[g] == PAGE_NONE;
        match (0..self.windows.len()).find(|&g| lacks(g)) {
            Some(group) => Err(format!("node {id} has no page in group {group}, which keeps all positions")),
            None => Ok(()),
        }
    }

    fn check_list(&self, group: usize) -> Result<(), String> {
        let (mut at, mut n, mut before) = (self.lists[group].coldest, 0, NIL);
        while at != NIL {
            let Link { colder, hotter } = self.node(at).links[group];
            if colder != before || self.page(at, group) == PAGE_NONE {
                return Err(format!("node {at} does not belong where it is in the list of group {group}"));
            }
            (before, at, n) = (at, hotter, n + 1);
        }
        let n_pages = self.nodes.iter().filter(|node| node.pages[group] != PAGE_NONE).count();
        if (n, n, before) != (self.lists[group].len, n_pages, self.lists[group].hottest) {
            return Err(format!("the list of group {group} has {n} nodes, and {n_pages} have a page in it"));
        }
        Ok(())
    }
}
