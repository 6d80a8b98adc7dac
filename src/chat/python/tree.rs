//! Rewrites a template with Python's operators instead of minijinja's.
//!
//! minijinja's own operators, attributes and scopes differ from Jinja2's where no setting reaches. So its parser reads the
//! template, white-space control included, and what it read is written as a template whose operators are calls of
//! [`super::ops`]. Tags stay on their lines, for the lines in errors.

use std::fmt::Write;

use minijinja::machinery::ast::{CallType, Expr, IfCond, Macro, Spanned, Stmt};
use minijinja::machinery::{parse, Span, WhitespaceConfig};
use minijinja::{Error, ErrorKind};

use super::expr::string;
use super::source::plain;

/// `template`, for an environment that keeps all white space.
pub(super) fn rewritten(template: &str) -> Result<String, Error> {
    let spaces = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let tree = parse(template, "chat", Default::default(), spaces)?;
    let mut writer = Writer { template, out: String::new(), line: 1, in_macro: false, block: None };
    if let Stmt::Template(all) = &tree {
        writer.all(&all.children)?;
    }
    Ok(writer.out)
}

/// Returns true if this scope is a `{% generation %}` block. `__begin` and `__end` are undefined, and print nothing,
/// unless the caller defines them: the reader of conversations does, to find the answers.
fn is_generation(assignments: &[(Expr<'_>, Expr<'_>)]) -> bool {
    matches!(assignments, [(Expr::Var(of), _)] if of.id == "__generation")
}

pub(super) struct Writer<'a> {
    pub(super) template: &'a str,
    out: String,
    line: usize,
    pub(super) in_macro: bool,
    /// A block around the statements, whose text minijinja would lose at `break` and `continue`.
    block: Option<&'static str>,
}

/// Texts of all of these, between commas.
pub(super) fn joined<T>(all: &[T], each: impl Fn(&T) -> Result<String, Error>) -> Result<String, Error> {
    Ok(all.iter().map(each).collect::<Result<Vec<_>, _>>()?.join(", "))
}

pub(super) fn unsupported(what: &str, at: Span) -> Error {
    Error::new(ErrorKind::SyntaxError, format!("{what} is not supported (line {})", at.start_line))
}

impl<'a> Writer<'a> {
    fn all(&mut self, all: &[Stmt<'a>]) -> Result<(), Error> {
        all.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn raw(&mut self, text: &str) {
        let text = plain(text);
        if text.ends_with('{') || ["{{", "{%", "{#"].iter().any(|tag| text.contains(tag)) {
            self.out.extend(["{{ ", &string(&text), " }}"]);
        } else {
            self.line += text.matches('\n').count();
            self.out.push_str(&text);
        }
    }

    /// `{% inner %}`, on the line where the template has it.
    fn tag(&mut self, at: Span, inner: &str) {
        self.delimited("{%", at, inner, "%}");
    }

    fn delimited(&mut self, open: &str, at: Span, inner: &str, close: &str) {
        let lines = usize::from(at.start_line).saturating_sub(self.line);
        self.line += lines;
        self.out.push_str(open);
        self.out.push_str(&"\n".repeat(lines));
        self.out.extend([" ", inner, " ", close]);
    }

    fn end(&mut self, name: &str) {
        self.out.extend(["{% ", name, " %}"]);
    }

    /// The body of this block, or of a loop or a macro.
    fn inside(&mut self, block: Option<&'static str>, body: &[Stmt<'a>]) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.block, block);
        self.all(body)?;
        self.block = before;
        Ok(())
    }

    /// A body in a scope, whose text is captured.
    fn captured(&mut self, block: &'static str, body: &[Stmt<'a>]) -> Result<(), Error> {
        self.end("with");
        self.inside(Some(block), body)?;
        self.end("endwith");
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt<'a>) -> Result<(), Error> {
        match stmt {
            Stmt::Template(of) => self.all(&of.children)?,
            Stmt::EmitRaw(of) => self.raw(of.raw),
            Stmt::EmitExpr(of) => {
                let behind = self.template.get(of.span().end_offset as usize..).unwrap_or_default();
                if behind.trim_start().starts_with('+') {
                    return Err(unsupported("a plus at the end of an expression", of.span()));
                }
                let expr = self.expr(&of.expr)?;
                self.delimited("{{", of.span(), &expr, "}}");
            }
            Stmt::ForLoop(of) => {
                let mut tag = format!("for {} in __iter({})", self.target(&of.target)?, self.expr(&of.iter)?);
                if let Some(filter) = &of.filter_expr {
                    let _ = write!(tag, " if {}", self.expr(filter)?);
                }
                tag.push_str(if of.recursive { " recursive" } else { "" });
                self.tag(of.span(), &tag);
                self.inside(None, &of.body)?;
                if !of.else_body.is_empty() {
                    self.end("else");
                    self.all(&of.else_body)?;
                }
                self.end("endfor");
            }
            Stmt::IfCond(of) => {
                self.branches("if", of)?;
                self.end("endif");
            }
            Stmt::WithBlock(of) if is_generation(&of.assignments) => {
                self.tag(of.span(), "with");
                self.out.push_str("{{ __begin }}");
                self.inside(Some("a {% generation %} block"), &of.body)?;
                self.out.push_str("{{ __end }}");
                self.end("endwith");
            }
            Stmt::WithBlock(of) => {
                // All values are those of outside.
                let targets = joined(&of.assignments, |(target, _)| self.target(target))?;
                let values = joined(&of.assignments, |(_, value)| self.expr(value))?;
                let any = !of.assignments.is_empty();
                let tag = if any { format!("with ({targets},) = [{values}]") } else { "with".to_owned() };
                self.tag(of.span(), &tag);
                self.all(&of.body)?;
                self.end("endwith");
            }
            Stmt::Set(of) => {
                let (target, value) = (self.target(&of.target)?, self.expr(&of.expr)?);
                match of.target {
                    Expr::List(_) => self.tag(of.span(), &format!("set {target} = __iter({value})")),
                    _ => self.tag(of.span(), &format!("set {target} = {value}")),
                }
            }
            Stmt::SetBlock(of) => {
                let mut tag = format!("set {}", self.target(&of.target)?);
                if let Some(filter) = &of.filter {
                    let _ = write!(tag, " | {}", self.expr(filter)?);
                }
                self.tag(of.span(), &tag);
                self.captured("a {% set %} block", &of.body)?;
                self.end("endset");
            }
            Stmt::FilterBlock(of) => {
                let tag = format!("filter {}", self.expr(&of.filter)?);
                self.tag(of.span(), &tag);
                self.captured("a {% filter %} block", &of.body)?;
                self.end("endfilter");
            }
            Stmt::Macro(of) => {
                let tag = format!("macro {}({})", of.name, self.parameters(of)?);
                self.tag(of.span(), &tag);
                self.body_of_macro(of)?;
                self.end("endmacro");
            }
            Stmt::CallBlock(of) => {
                let CallType::Function(_) = of.call.identify_call() else {
                    return Err(unsupported("{% call %} of an attribute", of.span()));
                };
                let parameters = self.parameters(&of.macro_decl)?;
                let tag = format!("call({parameters}) {}", self.call(&of.call)?);
                self.tag(of.span(), &tag);
                self.body_of_macro(&of.macro_decl)?;
                self.end("endcall");
            }
            Stmt::Continue(of) => self.jump("continue", of.span())?,
            Stmt::Break(of) => self.jump("break", of.span())?,
            Stmt::AutoEscape(of) => return Err(unsupported("{% autoescape %}", of.span())),
            Stmt::Do(of) => return Err(unsupported("{% do %}", of.span())),
            Stmt::Block(of) => return Err(unsupported("{% block %}", of.span())),
            Stmt::Extends(of) => return Err(unsupported("{% extends %}", of.span())),
            Stmt::Include(of) => return Err(unsupported("{% include %}", of.span())),
            Stmt::Import(of) => return Err(unsupported("{% import %}", of.span())),
            Stmt::FromImport(of) => return Err(unsupported("{% from .. import %}", of.span())),
        }
        Ok(())
    }

    fn branches(&mut self, word: &str, of: &Spanned<IfCond<'a>>) -> Result<(), Error> {
        let tag = format!("{word} {}", self.expr(&of.expr)?);
        self.tag(of.span(), &tag);
        self.all(&of.true_body)?;
        match &of.false_body[..] {
            [] => Ok(()),
            [Stmt::IfCond(next)] => self.branches("elif", next),
            other => {
                self.end("else");
                self.all(other)
            }
        }
    }

    fn jump(&mut self, word: &str, at: Span) -> Result<(), Error> {
        if let Some(block) = self.block {
            return Err(unsupported(&format!("{{% {word} %}} in {block}"), at));
        }
        self.tag(at, word);
        Ok(())
    }

    fn parameters(&self, of: &Macro<'a>) -> Result<String, Error> {
        joined(&of.args, |arg| self.target(arg))
    }

    /// Defaults are expressions of the macro's own scope, and what is undefined is no missing argument.
    fn body_of_macro(&mut self, of: &Macro<'a>) -> Result<(), Error> {
        let in_macro = std::mem::replace(&mut self.in_macro, true);
        let without = of.args.len() - of.defaults.len();
        for (i, arg) in of.args.iter().enumerate() {
            let name = self.target(arg)?;
            let given = format!("set {name} = __given({name})");
            match i.checked_sub(without) {
                None => self.end(&given),
                Some(default) => {
                    let default = self.expr(&of.defaults[default])?;
                    self.end(&format!("if {name} is undefined"));
                    self.end(&format!("set {name} = {default}"));
                    self.end("else");
                    self.end(&given);
                    self.end("endif");
                }
            }
        }
        self.inside(None, &of.body)?;
        self.in_macro = in_macro;
        Ok(())
    }

    fn target(&self, target: &Expr<'a>) -> Result<String, Error> {
        Ok(match target {
            Expr::List(of) => format!("({},)", joined(&of.items, |item| self.target(item))?),
            Expr::GetAttr(of) => format!("{}.{}", self.target(&of.expr)?, of.name),
            Expr::Var(of) => of.id.to_owned(),
            other => {
                return Err(unsupported(&format!("assigning to a {}", other.description()), other.span()))
            }
        })
    }
}
