//! Rewriting of a template's syntax tree, so that its operators are this crate's filters. The
//! engine's own operators have no limits, and the engine evaluates constants while it compiles.
//!
//! Texts between tags become printed constants, so that they are charged too.

use minijinja::Value;
use minijinja::machinery::{Span, Token, ast, tokenize};
use minijinja::syntax::SyntaxConfig;

use super::values::{Dict, List, ListKind};
use crate::{Error, Result};
use ast::{CallArg, Expr, Spanned, Stmt};

/// Maximum number of nested operators between one pair of braces. Parser and compiler recurse for
/// each.
const MAX_OPERATORS: usize = 500;
/// Maximum number of tokens between one pair of braces.
const MAX_TOKENS: usize = 20_000;
/// Most `elif` in a template, since each is an `if` nested in the previous one.
const MAX_ELIF: usize = 1_000;

/// Refuses a source whose parsing would take too much stack.
///
/// # Errors
/// It has too many nested operators, too long a tag, or too many `elif`.
pub(super) fn check_source(source: &str, syntax: SyntaxConfig) -> Result<()> {
    let (mut n_tokens, mut n_elif) = (0, 0);
    // Nested operators so far; and for each open bracket, those at the bracket and the most since.
    let mut n_operators = 0usize;
    let mut open: Vec<(usize, usize)> = Vec::new();
    for token in tokenize(source, false, syntax) {
        let (token, span) = token.map_err(|e| Error::Template(e.to_string()))?;
        n_tokens += 1;
        match token {
            Token::VariableStart | Token::BlockStart => {
                (n_tokens, n_operators) = (0, 0);
                open.clear();
            }
            Token::ParenOpen | Token::BracketOpen | Token::BraceOpen => {
                n_operators += 1;
                open.push((n_operators, n_operators));
            }
            Token::Comma => {
                if let Some((at, most)) = open.last_mut() {
                    *most = n_operators.max(*most);
                    n_operators = *at;
                }
            }
            Token::ParenClose | Token::BracketClose | Token::BraceClose => {
                if let Some((_, most)) = open.pop() {
                    n_operators = n_operators.max(most);
                }
            }
            Token::Ident("elif") => n_elif += 1,
            Token::Ident("and" | "or" | "not" | "is" | "in" | "if" | "else") => n_operators += 1,
            Token::TemplateData(_)
            | Token::VariableEnd
            | Token::BlockEnd
            | Token::Ident(_)
            | Token::Str(_)
            | Token::String(_)
            | Token::Int(_)
            | Token::Int128(_)
            | Token::Float(_)
            | Token::Colon
            | Token::Assign => {}
            Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::FloorDiv
            | Token::Pow
            | Token::Mod
            | Token::Dot
            | Token::Tilde
            | Token::Pipe
            | Token::Eq
            | Token::Ne
            | Token::Gt
            | Token::Gte
            | Token::Lt
            | Token::Lte => n_operators += 1,
        }
        let too_many = [
            (n_operators, MAX_OPERATORS, "nested operators"),
            (n_tokens, MAX_TOKENS, "tokens in one tag"),
            (n_elif, MAX_ELIF, "`elif`"),
        ];
        if let Some((_, limit, what)) = too_many.into_iter().find(|(n, limit, _)| n > limit) {
            return Err(Error::Template(format!("line {}: more than {limit} {what}", span.start_line)));
        }
    }
    Ok(())
}

/// A statement with filters in place of operators.
pub(super) fn stmt<'a>(node: &Stmt<'a>) -> Stmt<'a> {
    match node {
        Stmt::Template(s) => Stmt::Template(new(s.span(), ast::Template { children: body(&s.children) })),
        Stmt::EmitExpr(s) => Stmt::EmitExpr(new(s.span(), ast::EmitExpr { expr: expr(&s.expr) })),
        Stmt::EmitRaw(s) => {
            let text = Expr::Const(new(s.span(), ast::Const { value: Value::from(s.raw) }));
            Stmt::EmitExpr(new(s.span(), ast::EmitExpr { expr: text }))
        }
        Stmt::ForLoop(s) => Stmt::ForLoop(new(
            s.span(),
            ast::ForLoop {
                target: target(&s.target),
                iter: filter("@iter", s.iter.span(), expr(&s.iter), vec![]),
                filter_expr: s.filter_expr.as_ref().map(expr),
                recursive: s.recursive,
                body: body(&s.body),
                else_body: body(&s.else_body),
            },
        )),
        Stmt::IfCond(s) => Stmt::IfCond(new(
            s.span(),
            ast::IfCond {
                expr: expr(&s.expr),
                true_body: body(&s.true_body),
                false_body: body(&s.false_body),
            },
        )),
        Stmt::WithBlock(s) => {
            let assignments = s.assignments.iter().map(|(to, from)| (target(to), stored(to, from))).collect();
            Stmt::WithBlock(new(s.span(), ast::WithBlock { assignments, body: body(&s.body) }))
        }
        Stmt::Set(s) => {
            Stmt::Set(new(s.span(), ast::Set { target: target(&s.target), expr: stored(&s.target, &s.expr) }))
        }
        Stmt::SetBlock(s) => Stmt::SetBlock(new(
            s.span(),
            ast::SetBlock {
                target: target(&s.target),
                filter: s.filter.as_ref().map(expr),
                body: body(&s.body),
            },
        )),
        Stmt::AutoEscape(s) => Stmt::AutoEscape(new(
            s.span(),
            ast::AutoEscape { enabled: expr(&s.enabled), body: body(&s.body) },
        )),
        Stmt::FilterBlock(s) => Stmt::FilterBlock(new(
            s.span(),
            ast::FilterBlock { filter: expr(&s.filter), body: body(&s.body) },
        )),
        Stmt::Block(s) => {
            Stmt::Block(new(s.span(), ast::Block { name: s.name, required: s.required, body: body(&s.body) }))
        }
        // There is no other template to include, so an include fails when it is executed.
        Stmt::Import(s) => no_other(s.span(), &s.expr),
        Stmt::FromImport(s) => no_other(s.span(), &s.expr),
        Stmt::Extends(s) => no_other(s.span(), &s.name),
        Stmt::Include(s) if s.ignore_missing => {
            Stmt::EmitExpr(new(s.span(), ast::EmitExpr { expr: constant(s.span(), Value::from("")) }))
        }
        Stmt::Include(s) => no_other(s.span(), &s.name),
        Stmt::Macro(s) => Stmt::Macro(new(s.span(), declaration(s))),
        Stmt::CallBlock(s) => Stmt::CallBlock(new(
            s.span(),
            ast::CallBlock {
                call: new(s.call.span(), call(&s.call)),
                macro_decl: new(s.macro_decl.span(), declaration(&s.macro_decl)),
            },
        )),
        Stmt::Continue(s) => Stmt::Continue(new(s.span(), ast::Continue)),
        Stmt::Break(s) => Stmt::Break(new(s.span(), ast::Break)),
        Stmt::Do(s) => Stmt::Do(new(s.span(), ast::Do { call: new(s.call.span(), call(&s.call)) })),
    }
}

fn new<T>(span: Span, node: T) -> Spanned<T> {
    Spanned::new(node, span)
}

fn body<'a>(statements: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
    statements.iter().map(stmt).collect()
}

fn declaration<'a>(node: &ast::Macro<'a>) -> ast::Macro<'a> {
    ast::Macro {
        name: node.name,
        args: node.args.iter().map(target).collect(),
        defaults: node.defaults.iter().map(expr).collect(),
        body: body(&node.body),
    }
}

fn no_other<'a>(span: Span, name: &Expr<'a>) -> Stmt<'a> {
    Stmt::EmitExpr(new(span, ast::EmitExpr { expr: filter("@other", span, expr(name), vec![]) }))
}

/// A target of an assignment: names, lists of names, and attributes of namespaces.
fn target<'a>(node: &Expr<'a>) -> Expr<'a> {
    match node {
        Expr::List(s) => Expr::List(new(s.span(), ast::List { items: s.items.iter().map(target).collect() })),
        Expr::Tuple(s) => {
            Expr::Tuple(new(s.span(), ast::Tuple { items: s.items.iter().map(target).collect() }))
        }
        Expr::Var(s) => Expr::Var(new(s.span(), ast::Var { id: s.id })),
        other => expr(other),
    }
}

/// An assigned value, checked if a namespace stores it.
fn stored<'a>(to: &Expr<'a>, from: &Expr<'a>) -> Expr<'a> {
    match to {
        Expr::GetAttr(_) => filter("@store", from.span(), expr(from), vec![]),
        _ => expr(from),
    }
}

fn constant<'a>(span: Span, value: Value) -> Expr<'a> {
    Expr::Const(new(span, ast::Const { value }))
}

fn filter<'a>(name: &'static str, span: Span, subject: Expr<'a>, args: Vec<Expr<'a>>) -> Expr<'a> {
    let args = args.into_iter().map(CallArg::Pos).collect();
    Expr::Filter(new(span, ast::Filter { name, expr: Some(subject), args }))
}

fn expr<'a>(node: &Expr<'a>) -> Expr<'a> {
    match node {
        Expr::Var(s) => Expr::Var(new(s.span(), ast::Var { id: s.id })),
        Expr::Const(s) => constant(s.span(), s.value.clone()),
        Expr::Slice(s) => {
            let part = |part: &Option<Expr<'a>>| match part {
                Some(part) => expr(part),
                None => constant(s.span(), Value::from(())),
            };
            let args = vec![part(&s.start), part(&s.stop), part(&s.step)];
            filter("@slice", s.span(), expr(&s.expr), args)
        }
        Expr::UnaryOp(s) => {
            // The kind is not `Copy`.
            #[allow(clippy::needless_match)]
            let op = match s.op {
                ast::UnaryOpKind::Not => ast::UnaryOpKind::Not,
                ast::UnaryOpKind::Neg => ast::UnaryOpKind::Neg,
            };
            Expr::UnaryOp(new(s.span(), ast::UnaryOp { op, expr: expr(&s.expr) }))
        }
        Expr::BinOp(s) => binary(s),
        Expr::Compare(s) => compare(s),
        Expr::IfExpr(s) => Expr::IfExpr(new(
            s.span(),
            ast::IfExpr {
                test_expr: expr(&s.test_expr),
                true_expr: expr(&s.true_expr),
                false_expr: s.false_expr.as_ref().map(expr),
            },
        )),
        Expr::Filter(s) => Expr::Filter(new(
            s.span(),
            ast::Filter { name: s.name, expr: s.expr.as_ref().map(expr), args: args(&s.args) },
        )),
        Expr::Test(s) => {
            Expr::Test(new(s.span(), ast::Test { name: s.name, expr: expr(&s.expr), args: args(&s.args) }))
        }
        Expr::GetAttr(s) => Expr::GetAttr(new(s.span(), ast::GetAttr { expr: expr(&s.expr), name: s.name })),
        Expr::GetItem(s) if is_cheap_key(&s.subscript_expr) => Expr::GetItem(new(
            s.span(),
            ast::GetItem { expr: expr(&s.expr), subscript_expr: expr(&s.subscript_expr) },
        )),
        Expr::GetItem(s) => filter("@get", s.span(), expr(&s.expr), vec![expr(&s.subscript_expr)]),
        // In the engine, `cycle` without arguments divides by zero, and `changed` stores its
        // arguments.
        Expr::Call(s) => match (&s.expr, loop_method(s)) {
            (Expr::GetAttr(subject), Some(name)) => Expr::Filter(new(
                s.span(),
                ast::Filter { name, expr: Some(expr(&subject.expr)), args: args(&s.args) },
            )),
            _ => Expr::Call(new(s.span(), call(s))),
        },
        Expr::List(s) => items(s.span(), &s.items, ListKind::List),
        Expr::Tuple(s) => items(s.span(), &s.items, ListKind::Tuple),
        Expr::Map(s) => map(s),
    }
}

/// True for a constant text, whose lookup in an object is O(1), and for a small number.
fn is_cheap_key(key: &Expr) -> bool {
    let Expr::Const(key) = key else { return false };
    key.value.as_str().is_some() || key.value.as_usize().is_some_and(|at| at <= 64)
}

fn loop_method(call: &ast::Call) -> Option<&'static str> {
    match &call.expr {
        Expr::GetAttr(attr) if attr.name == "cycle" => Some("@cycle"),
        Expr::GetAttr(attr) if attr.name == "changed" => Some("@changed"),
        _ => None,
    }
}

fn binary<'a>(s: &Spanned<ast::BinOp<'a>>) -> Expr<'a> {
    use ast::BinOpKind as Op;
    let ours = match s.op {
        Op::Add => "@add",
        Op::Mul => "@mul",
        Op::Concat => "@concat",
        Op::Eq => "@eq",
        Op::Ne => "@ne",
        Op::Lt => "@lt",
        Op::Lte => "@lte",
        Op::Gt => "@gt",
        Op::Gte => "@gte",
        Op::In => "@in",
        // Numbers of constant size, and operators that choose one of two values.
        Op::ScAnd | Op::ScOr | Op::Sub | Op::Div | Op::FloorDiv | Op::Rem | Op::Pow => {
            let op = ast::BinOp { op: s.op, left: expr(&s.left), right: expr(&s.right) };
            return Expr::BinOp(new(s.span(), op));
        }
    };
    filter(ours, s.span(), expr(&s.left), vec![expr(&s.right)])
}

fn compare<'a>(s: &Spanned<ast::Compare<'a>>) -> Expr<'a> {
    use ast::CompareOpKind as Op;
    if let [only] = s.ops.as_slice() {
        let ours = match only.op {
            Op::Eq => "@eq",
            Op::Ne => "@ne",
            Op::Lt => "@lt",
            Op::Lte => "@lte",
            Op::Gt => "@gt",
            Op::Gte => "@gte",
            Op::In => "@in",
            Op::NotIn => "@notin",
        };
        return filter(ours, s.span(), expr(&s.expr), vec![expr(&only.expr)]);
    }
    // In a chain, each operand is evaluated once, and only if the comparisons before it are true.
    let weighed = |node: &Expr<'a>| filter("@weigh", node.span(), expr(node), vec![]);
    let ops = s.ops.iter().map(|op| ast::CompareOp { op: op.op, expr: weighed(&op.expr) }).collect();
    Expr::Compare(new(s.span(), ast::Compare { expr: weighed(&s.expr), ops }))
}

fn call<'a>(node: &ast::Call<'a>) -> ast::Call<'a> {
    let mut args = args(&node.args);
    // A recursive loop iterates over its call's argument, whatever its name.
    if let (Expr::Var(_), [CallArg::Pos(_)]) = (&node.expr, args.as_slice())
        && let Some(CallArg::Pos(only)) = args.pop()
    {
        args.push(CallArg::Pos(filter("@iter", only.span(), only, vec![])));
    }
    ast::Call { expr: expr(&node.expr), args }
}

fn args<'a>(args: &[CallArg<'a>]) -> Vec<CallArg<'a>> {
    let arg = |arg: &CallArg<'a>| match arg {
        CallArg::Pos(node) => CallArg::Pos(expr(node)),
        CallArg::Kwarg(name, node) => CallArg::Kwarg(name, expr(node)),
        CallArg::PosSplat(node) => CallArg::PosSplat(filter("list", node.span(), expr(node), vec![])),
        CallArg::KwargSplat(node) => CallArg::KwargSplat(expr(node)),
    };
    args.iter().map(arg).collect()
}

fn items<'a>(span: Span, items: &[Expr<'a>], kind: ListKind) -> Expr<'a> {
    let items: Vec<Expr> = items.iter().map(expr).collect();
    let constants = items.iter().map(constant_value).collect::<Option<Vec<Value>>>();
    if let Some(list) = constants.and_then(|values| List::value(values, kind).ok()) {
        return constant(span, list);
    }
    let (name, raw) = match kind {
        ListKind::Tuple => ("@tuple", Expr::Tuple(new(span, ast::Tuple { items }))),
        ListKind::List | ListKind::View | ListKind::Group => {
            ("@list", Expr::List(new(span, ast::List { items })))
        }
    };
    filter(name, span, raw, vec![])
}

fn map<'a>(s: &Spanned<ast::Map<'a>>) -> Expr<'a> {
    let keys: Vec<Expr> = s.keys.iter().map(expr).collect();
    let values: Vec<Expr> = s.values.iter().map(expr).collect();
    let constants = keys
        .iter()
        .zip(&values)
        .map(|(key, value)| Some((constant_value(key)?, constant_value(value)?)))
        .collect::<Option<Vec<_>>>();
    if let Some(dict) = constants.and_then(|pairs| Dict::value(pairs).ok()) {
        return constant(s.span(), dict);
    }
    // The engine hashes a key before the filter sees it.
    let keys = keys
        .into_iter()
        .map(|key| match key {
            Expr::Const(_) => key,
            _ => filter("@weigh", key.span(), key, vec![]),
        })
        .collect();
    filter("@map", s.span(), Expr::Map(new(s.span(), ast::Map { keys, values })), vec![])
}

fn constant_value(node: &Expr) -> Option<Value> {
    match node {
        Expr::Const(node) => Some(node.value.clone()),
        _ => None,
    }
}
