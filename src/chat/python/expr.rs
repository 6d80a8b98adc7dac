//! The expressions of [`super::tree`].

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CallType, CompareOpKind, Expr, UnaryOpKind};
use minijinja::machinery::Span;
use minijinja::value::{Value, ValueKind};
use minijinja::Error;

use super::source::decoded;
use super::tree::{joined, unsupported, Writer};

/// Functions that take what is undefined as it is, as macros do not.
const FUNCTIONS: [&str; 7] =
    ["cycler", "dict", "joiner", "namespace", "raise_exception", "range", "strftime_now"];

impl<'a> Writer<'a> {
    fn begins_with(&self, at: Span, c: char) -> bool {
        self.template.get(at.start_offset as usize..).is_some_and(|text| text.starts_with(c))
    }

    pub(super) fn expr(&self, expr: &Expr<'a>) -> Result<String, Error> {
        match negated(expr).filter(|(_, at)| self.begins_with(*at, '-')) {
            // minijinja reads `-a.b` as `(-a).b`.
            Some((inner, _)) => Ok(format!("__neg({})", self.postfix(expr, Some(inner))?)),
            None => self.postfix(expr, None),
        }
    }

    /// `bare`: the operand of a minus that is written around this expression.
    fn postfix(&self, expr: &Expr<'a>, bare: Option<&Expr<'a>>) -> Result<String, Error> {
        let base = |of: &Expr<'a>| match (of, bare) {
            (Expr::UnaryOp(_), Some(bare)) => self.expr(bare),
            _ => self.postfix(of, bare),
        };
        Ok(match expr {
            Expr::Var(of) => match of.id {
                "varargs" | "kwargs" if self.in_macro => {
                    return Err(unsupported(&format!("{} of a macro's argument list", of.id), of.span()))
                }
                "self" | "lipsum" => return Err(unsupported(&format!("the name {}", of.id), of.span())),
                id => id.to_owned(),
            },
            Expr::Const(of) => constant(&of.value)?,
            Expr::GetAttr(of) => format!("__attr({}, \"{}\")", base(&of.expr)?, of.name),
            Expr::GetItem(of) => format!("__item({}, {})", base(&of.expr)?, self.expr(&of.subscript_expr)?),
            Expr::Slice(of) => {
                let parts = joined(&[&of.start, &of.stop, &of.step], |part| match part {
                    Some(part) => self.expr(part),
                    None => Ok("none".to_owned()),
                })?;
                format!("__slice({}, {parts})", base(&of.expr)?)
            }
            Expr::Call(of) if bare.is_none() => self.call(of)?,
            Expr::Call(of) => return Err(unsupported("a minus before a call", of.span())),
            Expr::UnaryOp(of) => match of.op {
                UnaryOpKind::Not => format!("(not {})", self.expr(&of.expr)?),
                UnaryOpKind::Neg => format!("__neg({})", self.expr(&of.expr)?),
            },
            Expr::BinOp(of) => self.binary(of.op, &of.left, &of.right)?,
            Expr::Compare(of) => {
                let rest = joined(&of.ops, |op| {
                    let sign = match op.op {
                        CompareOpKind::Eq => "==",
                        CompareOpKind::Ne => "!=",
                        CompareOpKind::Lt => "<",
                        CompareOpKind::Lte => "<=",
                        CompareOpKind::Gt => ">",
                        CompareOpKind::Gte => ">=",
                        CompareOpKind::In => "in",
                        CompareOpKind::NotIn => "not in",
                    };
                    Ok(format!("\"{sign}\", {}", self.expr(&op.expr)?))
                })?;
                format!("__compare({}, {rest})", self.expr(&of.expr)?)
            }
            Expr::IfExpr(of) => {
                let (yes, test) = (self.expr(&of.true_expr)?, self.expr(&of.test_expr)?);
                match &of.false_expr {
                    Some(no) => format!("({yes} if {test} else {})", self.expr(no)?),
                    None => format!("({yes} if {test})"),
                }
            }
            Expr::Filter(of) => {
                let operand = match &of.expr {
                    Some(operand) => self.expr(operand)? + " | ",
                    None => String::new(),
                };
                format!("{operand}{}{}", of.name, self.in_parentheses(&of.args)?)
            }
            Expr::Test(of) => {
                format!("({} is {}{})", self.expr(&of.expr)?, of.name, self.in_parentheses(&of.args)?)
            }
            Expr::List(of) => {
                let items = joined(&of.items, |item| self.expr(item))?;
                // The span of a tuple without parentheses begins within it.
                let first = of.items.first().map(|item| item.span().start_offset);
                let bare = first.is_some_and(|first| first < of.span().start_offset);
                if !bare && self.begins_with(of.span(), '[') {
                    format!("[{items}]")
                } else {
                    format!("__tuple({items})")
                }
            }
            Expr::Map(of) => {
                let texts =
                    of.keys.iter().all(|key| matches!(key, Expr::Const(c) if c.value.as_str().is_some()));
                let pairs = of.keys.iter().zip(&of.values).map(|(key, value)| {
                    let between = if texts { ": " } else { ", " };
                    Ok(self.expr(key)? + between + &self.expr(value)?)
                });
                let pairs = pairs.collect::<Result<Vec<_>, Error>>()?.join(", ");
                if texts {
                    format!("{{{pairs}}}")
                } else {
                    format!("__dict({pairs})")
                }
            }
        })
    }

    fn binary(&self, op: BinOpKind, left: &Expr<'a>, right: &Expr<'a>) -> Result<String, Error> {
        let sign = match op {
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let word = if matches!(op, BinOpKind::ScAnd) { "and" } else { "or" };
                let first = self.expr(left)?;
                // Constants would be folded, and to other values than Python's.
                let first = if left.as_const().is_some() { format!("__same({first})") } else { first };
                return Ok(format!("({first} {word} {})", self.expr(right)?));
            }
            BinOpKind::Add => "+",
            BinOpKind::Concat => "~",
            BinOpKind::Sub => "-",
            BinOpKind::Mul => "*",
            BinOpKind::Div => "/",
            BinOpKind::FloorDiv => "//",
            BinOpKind::Rem => "%",
            BinOpKind::Pow => "**",
            BinOpKind::Eq => "==",
            BinOpKind::Ne => "!=",
            BinOpKind::Lt => "<",
            BinOpKind::Lte => "<=",
            BinOpKind::Gt => ">",
            BinOpKind::Gte => ">=",
            BinOpKind::In => "in",
        };
        // A chain of one operator is one call: templates join dozens of texts, and nesting has a limit.
        let (mut operands, mut rest) = (vec![self.expr(right)?], left);
        while let Expr::BinOp(inner) = rest {
            let same = std::mem::discriminant(&inner.op) == std::mem::discriminant(&op);
            if !same || !matches!(op, BinOpKind::Add | BinOpKind::Concat) {
                break;
            }
            operands.push(self.expr(&inner.right)?);
            rest = &inner.left;
        }
        operands.push(self.expr(rest)?);
        operands.reverse();
        Ok(format!("__op(\"{sign}\", {})", operands.join(", ")))
    }

    fn in_parentheses(&self, args: &[CallArg<'a>]) -> Result<String, Error> {
        Ok(if args.is_empty() { String::new() } else { format!("({})", self.args(args, false)?) })
    }

    fn args(&self, args: &[CallArg<'a>], of_macro: bool) -> Result<String, Error> {
        let value = |expr: &Expr<'a>| -> Result<String, Error> {
            let text = self.expr(expr)?;
            let may_be_undefined =
                !matches!(expr, Expr::Const(_) | Expr::List(_) | Expr::Map(_) | Expr::BinOp(_));
            Ok(if of_macro && may_be_undefined { format!("__passed({text})") } else { text })
        };
        joined(args, |arg| {
            Ok(match arg {
                CallArg::Pos(expr) => value(expr)?,
                CallArg::Kwarg(name, expr) => format!("{name}={}", value(expr)?),
                CallArg::PosSplat(expr) => format!("*__iter({})", self.expr(expr)?),
                CallArg::KwargSplat(expr) => format!("**{}", self.expr(expr)?),
            })
        })
    }

    pub(super) fn call(&self, of: &Call<'a>) -> Result<String, Error> {
        Ok(match of.identify_call() {
            CallType::Function("loop") => format!("loop(__iter({}))", self.args(&of.args, false)?),
            CallType::Function(name) => {
                if matches!(name, "self" | "super" | "lipsum") {
                    return Err(unsupported(&format!("the name {name}"), of.expr.span()));
                }
                format!("{name}({})", self.args(&of.args, !FUNCTIONS.contains(&name))?)
            }
            CallType::Method(object, name) => {
                format!("__same({}).{name}({})", self.expr(object)?, self.args(&of.args, false)?)
            }
            CallType::Block(_) => return Err(unsupported("the name self", of.expr.span())),
            CallType::Object(object) => {
                format!("__same({})({})", self.expr(object)?, self.args(&of.args, false)?)
            }
        })
    }
}

/// The operand of the minus at the beginning of `-a.b[c]`, and where `-a.b` is.
fn negated<'b, 'a>(expr: &'b Expr<'a>) -> Option<(&'b Expr<'a>, Span)> {
    let inner = match expr {
        Expr::GetAttr(of) => &of.expr,
        Expr::GetItem(of) => &of.expr,
        Expr::Slice(of) => &of.expr,
        Expr::Call(of) => &of.expr,
        _ => return None,
    };
    match inner {
        Expr::UnaryOp(of) if matches!(of.op, UnaryOpKind::Neg) => Some((&of.expr, expr.span())),
        inner => negated(inner),
    }
}

fn constant(value: &Value) -> Result<String, Error> {
    Ok(match value.kind() {
        ValueKind::String => string(&decoded(value.as_str().unwrap_or_default())?),
        ValueKind::None => "none".to_owned(),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(x) if x.is_finite() => format!("{x:?}"),
            _ => "1e999".to_owned(),
        },
        _ => value.to_string().to_lowercase(),
    })
}

pub(super) fn string(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
