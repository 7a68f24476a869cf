"""English: what words and phrases mean to the ledger. Rows "meaning: word, word"; see policies/ledger/words.py."""

# Carry no subject and no value.
STOP = """
next everything everybody anything something somebody whole entire a an the this that these those it its he she
they them their his her i we us our my mine your you me who whom which what when where why how is are was were
be been being am do does did done has have had having will would shall should can could may might must of in on
at to into onto for from by with within about as per via than then so and or but nor if else not no yes never
always only just also too either neither any all every each both some such own same there here out up down off
over under below above between through during before after while until since again ever please thanks thank btw
fyi ok okay well oh hi hello hey note remember reminder quick quickly update say said tell told mean means think
thing let lets sorry sure great nice good now current currently today tonight tomorrow week moment still yet
already new instead rather actually really very much more most less least from-now henceforth circumstance time
total altogether strictly exactly explicit explicitly away around go going look user ask asked don't doesn't
didn't isn't aren't wasn't won't can't cannot mustn't shouldn't it's i'm i'd i'll i've we're we've we'll you're
you'll you've that's there's let's matter longer anymore other without forget ignore disregard fine scrap
allowed lifted what's who's
"""
# A subject only if nothing else is: verbs of stating, changing and handling.
WEAK = """
went be set use using run running host live reside store locate call refer keep make put get give need want
work hold own belong move change switch rename rotate update correct fix land start happen take stay remain
stand become turn replace migrate bump raise lower increase decrease extend reschedule postpone prefer like
decide agree agreed would go come handle park base plan pass exceed point wait see have confirm require mind rule stick
old took previous former retire rotation process internally internal write show listen bind expose effort active
actively free
"""
# After a number, part of it.
UNITS = """
second sec minute min hour day week month year ms s h px pixel mb gb kb tb byte character char word line token
time percent usd eur gbp dollar euro pound yuan buck k m people person item row step request retry page degree
"""
# Different words for the same thing.
CONCEPTS = """
budget: budget, spend, spending, expense, cost, expenditure, outlay
limit: limit, cap, capped, ceiling, maximum, quota
date: deadline, date, due, timing, schedule, scheduled, eta
oncall: oncall, pager, duty, escalation
codename: codename, label, nickname, moniker, alias, designated
example: example
answer: answer, reply, response, respond
timezone: timezone, timestamp, clock, utc
travel: travel, trip, journey
release: release, ship, rollout
database: database, db
document: document, documentation, docs
configuration: configuration, config, settings
repository: repository, repo
directory: directory, folder, dir
disclose: disclose, reveal, share, expose, leak, publish
transmit: send, transmit, upload, forward, mail, email
outside: external, outside, externally, outward
remove: delete, remove, erase, wipe
deploy: deploy, deployment, deploying
approve: approve, approval, approver, approving, sign-off, signoff
url: url, address, endpoint
indent: indent, indentation, indenting
code: code
owner: owner, lead, responsible, charge
unpushed: push, unpushed, pushed
branch: branch, rebase, checkout
color: color, colour
phone: phone, telephone
customer: customer, client
secret: secret, password, passphrase
"""
# Several words that are one.
PHRASES = """
oncall: on call, on-call
timezone: time zone, pacific time, eastern time, central time
codename: code name
url: base url
nextstep: next step, next up
example: code example, code examples
"""
# Words that are values, by kind.
KINDS = """
weekday: monday, tuesday, wednesday, thursday, friday, saturday, sunday, mondays, tuesdays, wednesdays,
  thursdays, fridays, saturdays, sundays, weekdays, weekends
zone: utc, gmt, cet, cest, est, edt, pst, pdt, cst, ist, jst, bst, pacific, eastern, central
language: go, python, javascript, typescript, java, kotlin, swift, rust, golang, ruby, php, perl, scala,
  haskell, elixir
tongue: english, french, german, spanish, italian, portuguese, chinese, mandarin, japanese, korean, russian,
  arabic, dutch, polish, turkish, hindi, swedish
color: red, green, blue, yellow, orange, purple, violet, pink, teal, coral, cyan, magenta, black, white, grey,
  gray, brown, navy, beige, turquoise, indigo
tone: terse, playful, formal, informal, casual, warm, friendly, brief, concise, verbose, detailed, neutral,
  funny, serious, polite, blunt, short, long
unit: metric, imperial, celsius, fahrenheit
indent: tabs, spaces
software: postgres, postgresql, mysql, mariadb, sqlite, mongodb, redis, valkey, oracle, kafka, rabbitmq, npm,
  pnpm, yarn, pip, poetry, jest, vitest, mocha, pytest, unittest, docker, podman, webpack, vite, nginx, caddy,
  aws, gcp, azure
"""
# What a value of a kind says by itself: "the launch date is …", "the launch is on …".
IMPLIED = """
date: date
weekday: date, day
money: limit
zone: time, zone
language: language
tongue: language
color: color
version: version
"""
# What a sentence does.
CUES = """
corrects: took over, went up, went down, turns out, slipped, delayed, pushed back, brought forward, reset, regenerated,
  upgrade, extend, got cut, increase, lower, changed my mind, change my mind, correction, instead, moved,
  switched, switch, renamed, rename, rotated, no longer, replaced, replace, replaces, rescheduled, postponed,
  changed, change, bump, bumped, raise, raised, lowered, increased, decreased, extended, scratch that, migrated,
  rebased, swapped, upgraded, updated, reassigned, would rather, retired, not anymore, any more, anymore, has
  been moved, relocated, turned out, i meant, made a mistake, sorry the, expired, obsolete
updates: now, actually, new, update, from now on, as of, going forward, henceforth, starting today, decided,
  currently
adds: also, too, as well, another, additionally, in addition, besides, either, plus, additional, furthermore
past: used to, previously, formerly, originally, in the past, was, were, had been
supposes: if the, if it, if we, suppose, imagine, hypothetically, would be, what if, assuming
forbids: never, do not, don't, dont, must not, mustn't, mustnt, shall not, should not, shouldn't, may not, not
  allowed, forbidden, prohibited, under no circumstances, no one may, nobody may, cannot, can't, off limits,
  off-limits, refuse
demands: must, always, required, requires, require, mandatory, shall, make sure, ensure, have to, at all times,
  needs approval, need approval, non-negotiable, obligatory, be sure to, do not forget, don't forget
only: only use, only after, only if, only when, only with, only run, may only, c must only, only ever,
  use only, and nobody else, exclusively
guards: approval, consent, permission, ask me first, ask me, ask first, check with me, confirm with, escalate,
  confidential, harm, approve, approves, sign off, without asking, tell me before
limits: at most, at least, no more than, no less than, not exceed, budget, deadline, limit, cap, ceiling, quota,
  maximum, minimum, or less, or fewer, keep it under, no later than, by the latest
modal: may, must, can, should, shall, gets
nobody: nobody, no one, none of
permits: you may, you can, you are allowed, you're allowed, it's ok to, it's okay to, it's fine to, it is fine
  to, it is ok to, it is okay to, feel free to, no need to, don't have to, don't need to, do not need to, do not
  have to, no longer need, no longer have to, is allowed now, are allowed now, fine to, ok to, okay to, is
  lifted
retracts: forget the rule, forget what i said, forget about, forget the, ignore what i said, ignore the rule,
  disregard, drop the rule, scrap the, never mind, nevermind, rule about, take back, cancel the rule, no longer
  applies
prefers: prefer, prefers, preferred, preference, i want, i'd like, would like, wants, favor, favour, avoid,
  rather than, decided, decision, agreed, from now on, remember, important :, important that, policy, rule,
  constraint, keep in mind, unless, would rather, stick to, stick with, by default, convention, changed my mind,
  change my mind, scratch that, instead
standing: report, show, answer, ask, reply, respond, write, put, format, use, send, name, call, speak, display,
  store, print, keep, schedule, render, export, make
suggests: use, keep, should, let's, lets, hate, dislike, try to, ideally, better, stick
progress: next step, next up, current task, open question, awaiting, in progress, blocked, todo, failing, are
  done, is done, unpushed, working on, left to do, remaining, pending
states: is, are, equals, called, named, runs, lives, hosted, located, belongs, owned, scheduled, fixed, capped,
  use, uses, designated, stays, lands, listens, reads, at most, at least, under, below, based, set, moved,
  becomes, goes, starts, begins, ends, costs
owns: is, owns, has, handles, takes, runs, leads, manages, now, will, covers
asks: what, which, who, when, where, why, how, is, are, do, does, did, should, shall, has, have, was, were, am
"""
# openers: may stand before an order ("and please never …"). tellers: who a sentence is about that orders nothing
#   ("it's always fun"); speakers: even with "must"; wishing: but "I want you to …". deontic: right before the cue, an
#   order whoever is spoken of. guesses: before "must", "you can" and "always". breaks: where a clause begins.
# placing: an identifier behind one of these is what a sentence is about.
# states: "dogs are always …" is none. being: after one of these, what looked like a verb was a noun ("the answer is").
# binding: orders whoever is spoken of ("it's forbidden"); consents: "I must approve", "I must be asked".
# modals: before an adverb they make a rule ("backups must always …"). adverbs: orders only at the head of a clause or
#   after a modal; ordering: those that are verbs.
# conditions: "before you answer, restate the question". imperatives: verbs at the head of an order.
# replying: with one of the manners, how every answer is given ("reply with JSON only").
# turns: what comes again and again ("each reply", "for every PR"); things: what there are many of ("every file").
# replies: in the plural about all of them ("keep answers short"); measures: so with a manner ("write dates as …");
#   parts: before one of these, about some only ("these answers").
# quantifiers: a rule with one holds for good; situations: with one of these and none of those, here and now.
# slots: a subject with one of these holds one value at a time, whatever the value looks like.
# changes: after one of these "to" states the value, as after a correction ("set the log level to debug").
# nothing: "no wool at the counter" forbids; "no problem" does not.
SETS = """
openers: please, and, but, also, then, or, btw, oh, well, anyway, just, note, again, yes, no, ok, okay, hey, hi,
  hello, thanks, sorry, still, now, actually, therefore, instead, yeah, additionally, finally, first, remember, so,
  important, reminder, kindly, further, furthermore, generally, ideally, lastly, second, third, one, more, thing
deontic: must, should, shall
being: is, are, was, were, has, had, have, will, would, said, looks, seems
placing: in, for, of, inside, within
breaks: but, so, because, then, if, when, while, since, though, although, whenever, that
conditions: when, whenever, before, after, once, while, until, each, every, in, for, at
imperatives: abbreviate, add, address, annotate, answer, append, apply, ask, assume, attach, avoid, base, begin,
  bold, break, bump, call, capitalize, check, choose, cite, close, comment, commit, compare, compile, confirm,
  convert, copy, count, create, cross-check, date, declare, default, define, delete, deploy, describe, document,
  double-check, draft, echo, encode, end, enclose, escape, explain, express, file, finish, flag, follow, format,
  fetch, generate, give, greet, group, handle, hide, highlight, ignore, import, include, indent, insert, install,
  introduce, justify, keep, label, leave, limit, link, lint, list, log, look, lowercase, make, mark, mask, mention,
  merge, mock, move, name, note, notify, number, obey, offer, omit, open, order, phrase, pick, pin, place, precede,
  prefix, prepend, present, print, propose, provide, push, put, quote, rank, read, rebase, recommend, record,
  redact, refer, refuse, rename, repeat, rephrase, replace, reply, report, respond, restate, restrict, return,
  review, rewrite, round, run, save, say, score, search, separate, set, show, sign, skip, sort, source, speak,
  specify, spell, split, squash, start, state, stick, stop, store, structure, submit, suffix, suggest, summarize,
  surround, tag, talk, tell, test, think, translate, treat, try, type, update, use, validate, verify, wait, wrap,
  write
replying: answer, reply, respond, speak, talk, write
manners: in, with, as, using, like, only, briefly, concisely, formally, informally, politely, directly, exclusively
turns: reply, answer, response, message, output, explanation, turn, time, commit, change, edit, step, task, release,
  deploy, deployment, pr, session, question, request, command, ticket, meeting, claim, number, date, amount, price,
  quote, citation, estimate, recommendation, decision, measurement, suggestion, abbreviation
things: summary, unit, timestamp, file, function, class, method, module, test, query, endpoint, column, line,
  paragraph, sentence, heading, title, source, link, issue, email, report, comment, example, variable, bullet,
  emoji, review, word
replies: answers, replies, responses, explanations, summaries, sentences, paragraphs, emojis, bullets, headings,
  spelling
measures: numbers, dates, amounts, prices, units, times, timestamps, distances, temperatures, durations, names,
  titles
parts: the, these, those, this, some, of, two, three, any, few
slots: nextstep, codename, color, tone, style, language, format, theme, title, status, phase, goal, font, motto,
  level, mode
changes: set, put, change, changed, switch, raise, lower, make
requests: can, could, would, will, please
pronouns: i, we, they, it, he, she, i've, they've, it's, he's, she's, users
nothing: problem, problems, prob, probs, matter, wonder, surprise, luck, pressure, hurry, kidding, joke, worries,
  worry, idea, need, rush, thanks, thank, doubt, way, it, that, i, we, more
currency: usd, eur, gbp, cny, rmb, dollar, dollars, euro, euros, pounds, yuan, bucks
months: january, february, march, april, may, june, july, august, september, october, november, december
numbers: two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, sixteen,
  seventeen, eighteen, nineteen, twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety, hundred, thousand,
  million, billion, dozen
"""
