// Least makespan of robot and server over all counts of rows, forward through the network: see clocks.py.
#include "tails.h"

#include <map>

namespace {

constexpr double kAgo = -1e30;      // seconds: the uplink's work where nothing of a skip can be sent later
constexpr size_t kLongFront = 400;  // points after which a front is thinned while it is being gathered

using Rows = std::pair<int, int>;                 // of an open skip: on robot, on server
using Held = std::map<Rows, std::vector<Front>>;  // -> [a][b]

// State between the transfers of a step and its compute: all that distinguishes one from another.
struct Key {
  int robot, server;  // rows of the skip
  int computed;       // rows of the side operator that the server has made
  int late;           // whether the robot's clock already counts a download
  bool operator<(const Key& o) const {
    return std::tie(robot, server, computed, late) < std::tie(o.robot, o.server, o.computed, o.late);
  }
};

// One step forward: what is held of its argument becomes what is held of its result.
class Forward {
 public:
  // Without tails no skip is followed.
  Forward(const Search& search, const Tails* tails, int w, double first_server)
      : f_(search),
        tails_(tails),
        s_(search.steps[w]),
        w_(w),
        m_(s_.argument + 1),
        n_(s_.length + 1),
        opens_(tails && s_.opens),
        joins_(tails && s_.joins),
        linked_(tails ? search.linked : search.plainly_linked),
        first_server_(first_server) {
    want_.assign(m_ * m_, 0);
    for (int x = 0; x < n_; x++)
      for (int y = 0; y < n_; y++)
        if (s_.allowed(x, y)) want_[s_.least[x] * m_ + s_.least[y]] = 1;
  }

  // All that is held of the result.
  Held from(const Held& held) {
    for (const auto& slice : held) {
      bool empty = true;
      for (const Front& front : slice.second) empty = empty && front.empty();
      if (empty) continue;
      ready_.clear();
      if (opens_)
        open_skip(slice.second);
      else
        transfer(slice.first, slice.second);
      for (auto& fronts : ready_) {
        for (Front& front : fronts.second) f_.thin(front);
        compute(fronts.first, fronts.second);
      }
    }
    for (auto& slice : after_)
      for (Front& front : slice.second) f_.thin(front);
    return std::move(after_);
  }

 private:
  // Returns true if no state with exactly A and B rows of the argument is done before the target.
  bool hopeless(int A, int B, const Point& p) const {
    return f_.hopeless(w_, A, B, p) || (tails_ && tails_->late_before(w_, A, B, p));
  }

  // Note a state that has A and B rows of the argument, unless it cannot lead below the target.
  void put(const Key& key, int A, int B, const Point& p) {
    if (hopeless(A, B, p)) return;
    auto& fronts = ready_[key];
    if (fronts.empty()) fronts.resize(m_ * m_);
    Front& front = fronts[A * m_ + B];
    front.push_back(p);
    if (front.size() > kLongFront) f_.thin(front);
  }

  // Note a state in each way to do what runs beside the transfers, which arrive at `at_robot` and `at_server` (0:
  // none) and take the uplink `wire` seconds: the skip's side operators, or those between argument and operator.
  void ways(const Rows& skip, int A, int B, const Point& p, double at_robot, double at_server, double up, double wire) {
    if (joins_ && s_.skip_rows) {
      for (int e = 0; e <= s_.skip_needed; e++) {
        const int c = s_.skip_needed - e, lacking = s_.skip_least[c] - skip.first, late = s_.skip_least[e] - skip.second;
        double start = p.robot, begin = p.server, work = p.work, queue = up, arrive = at_server;
        if (c && lacking > 0) start = std::max(start, skip_at_robot(lacking));
        if (e && late > 0) {
          work += late * s_.source_up;
          begin = std::max(begin, work + f_.latency);
          queue = std::max(queue, work + wire);
          if (wire > 0) arrive = std::max(arrive, work + wire + f_.latency);
        }
        put({skip.first, skip.second, e, at_robot > 0}, A, B,
            {std::max(start + s_.skip_robot[c], at_robot), std::max(begin + s_.skip_server[e], arrive), queue, 0});
      }
    } else if (!s_.sides || joins_) {
      put({skip.first, skip.second, 0, 0}, A, B,
          {std::max(p.robot, at_robot), std::max(p.server, at_server), up, p.work + wire});
    } else {
      for (int k = 0; k < s_.sides; k++)
        put({skip.first, skip.second, 0, 0}, A, B,
            {std::max(p.robot + s_.side_robot[k], at_robot), std::max(p.server + s_.side_server[k], at_server), up,
             p.work + wire});
    }
  }

  // Earliest arrival of the skip's source rows that the robot lacks: no server is done with it before.
  double skip_at_robot(int lacking) const { return first_server_ + f_.latency + f_.message + lacking * s_.source_down; }

  // Rows of a class, rounded up.
  int rounded(int rows) const { return std::min(s_.argument, (rows + s_.grain - 1) / s_.grain * s_.grain); }
  int rounded_early(int rows) const { return std::min(s_.early_rows, (rows + s_.grain - 1) / s_.grain * s_.grain); }

  // A skip begins at the argument: what either side has of it when the step begins is noted, in classes.
  void open_skip(const std::vector<Front>& held) {
    for (int i = 0; i < m_ * m_; i++) {
      const int a = i / m_, b = i % m_;
      for (const Point& p : held[i])
        for (int A = 0; A < m_; A++)
          for (int B = 0; B < m_; B++)
            if (want_[A * m_ + B] && !hopeless(A, B, p)) {
              if (s_.early_rows)
                open_early(a, b, A, B, p);
              else
                open_skip(a, b, A, B, p);
            }
    }
  }

  void open_skip(int a, int b, int A, int B, const Point& p) {
    const int as = rounded(std::max(a, A)), bs = std::max(b, B);
    exchange(a, b, {A, B}, {A, B}, p, [&](Point q, double at_robot, double at_server, double up, double wire) {
      if (wire == 0) up = std::max(up, p.robot);
      q.work = bs == s_.argument ? kAgo : up - wire;
      ways({as, bs}, A, B, q, at_robot, at_server, up, wire);
    });
  }

  // The same where the skip has operators of its own, which come first: the robot makes c rows of them, the fewest of a
  // class, the server e.
  void open_early(int a, int b, int A, int B, const Point& p) {
    for (int e = 0; e <= s_.early_needed; e++) {
      for (int c = s_.early_needed - e; c <= s_.early_needed; c = rounded_early(c) + 1) {
        const double robot_s = s_.early_robot[c], server_s = s_.early_server[e];
        if (hopeless(A, B, {p.robot + robot_s, p.server + server_s, p.up, 0})) break;
        const Rows had(std::max(A, s_.early_least[c]), std::max(B, s_.early_least[e])), wanted(A, B);
        exchange(a, b, had, wanted, p, [&](const Point& q, double at_robot, double at_server, double up, double wire) {
          if (wire == 0) up = std::max(up, p.robot);
          put({rounded_early(c), e, 0, 0}, A, B,
              {std::max(q.robot + robot_s, at_robot), std::max(q.server + server_s, at_server), up,
               e == s_.early_needed ? kAgo : std::max(up, q.robot + robot_s)});
        });
      }
    }
  }

  // Rows that the sides send each other to have so many: the missing ones, and more while they are there
  // before the rest of the run would have been computed for them. `wanted` are those that this operator reads.
  template <class Note>
  void exchange(int a, int b, const Rows& had, const Rows& wanted, const Point& p, const Note& note) const {
    const int A = had.first, B = had.second;
    const int robot_lacks = std::max(0, A - a), server_lacks = std::max(0, B - b);
    const double robot_done = p.robot + s_.rest_robot[A - robot_lacks];
    const double server_done = p.server + s_.rest_server[B - server_lacks];
    for (int i = robot_lacks; i <= A; i++) {
      const double at_robot = i ? p.server + i * s_.down + f_.message + f_.latency : 0;
      if (i > robot_lacks && at_robot >= robot_done) break;
      for (int j = server_lacks; j <= B; j++) {
        const double up = j ? std::max(p.up, p.robot) + j * s_.up + s_.message : p.up;
        const double at_server = j ? f_.latency + std::max(up, p.robot + j * s_.up_alone) : 0;
        if (j > server_lacks && at_server >= server_done) break;
        Point q = p;
        q.robot += s_.rest_robot[A - i];
        q.server += s_.rest_server[B - j];
        const Point later = {std::max(q.robot, at_robot), std::max(q.server, at_server), up};
        if (!hopeless(wanted.first, wanted.second, later))
          note(q, at_robot, at_server, up, j ? j * s_.up + s_.message : 0.0);
      }
    }
  }

  void add(Front& front, const Front& others) const {
    if (others.empty()) return;
    front.insert(front.end(), others.begin(), others.end());
    f_.thin(front);
  }

  // No skip begins: whoever has more rows than are wanted is taken as one that has just those.
  void transfer(const Rows& skip, const std::vector<Front>& held) {
    std::vector<Front> robot(held), server(held), both(m_ * m_);
    for (int b = 0; b < m_; b++)
      for (int a = m_ - 2; a >= 0; a--) add(robot[a * m_ + b], robot[(a + 1) * m_ + b]);
    for (int a = 0; a < m_; a++)
      for (int b = m_ - 2; b >= 0; b--) add(server[a * m_ + b], server[a * m_ + b + 1]);
    for (int a = m_ - 1; a >= 0; a--)
      for (int b = m_ - 1; b >= 0; b--) {
        both[a * m_ + b] = robot[a * m_ + b];
        if (b < m_ - 1) add(both[a * m_ + b], both[a * m_ + b + 1]);
      }
    for (int i = 0; i < m_ * m_; i++) {
      const int a = i / m_, b = i % m_;
      if (robot[i].empty() && server[i].empty() && both[i].empty()) continue;
      if (want_[i]) send(skip, a, b, a, b, both[i]);
      if (!robot[i].empty())
        for (int B = b + 1; B < m_; B++)
          if (want_[a * m_ + B]) send(skip, a, b, a, B, robot[i]);
      if (!server[i].empty())
        for (int A = a + 1; A < m_; A++)
          if (want_[A * m_ + b]) send(skip, a, b, A, b, server[i]);
      if (!held[i].empty())
        for (int A = a + 1; A < m_; A++)
          for (int B = b + 1; B < m_; B++)
            if (want_[A * m_ + B]) send(skip, a, b, A, B, held[i]);
    }
  }

  void send(const Rows& skip, int a, int b, int A, int B, const Front& front) {
    for (const Point& p : front)
      if (!hopeless(A, B, p))
        exchange(a, b, {A, B}, {A, B}, p, [&](const Point& q, double at_robot, double at_server, double up, double wire) {
          ways(skip, A, B, q, at_robot, at_server, up, wire);
        });
  }

  // Robot and server make rows of the result.
  void compute(const Key& key, const std::vector<Front>& fronts) {
    auto& to = after_[joins_ ? Rows(0, 0) : Rows(key.robot, key.server)];
    if (to.empty()) to.resize(n_ * n_);
    for (int x = 0; x < n_; x++)
      for (int y = std::max(0, s_.needed - x); y < n_; y++) {
        if (!s_.allowed(x, y)) continue;
        for (const Point& p : fronts[s_.least[x] * m_ + s_.least[y]]) {
          if (!joins_) {
            made(key, x, y, p, to[x * n_ + y]);
          } else if (s_.skip_rows) {
            made(key, x, y, with_side(key, x, y, p), to[x * n_ + y]);
          } else {
            made(key, x, y, with_skip(key, x, y, p), to[x * n_ + y]);
          }
        }
      }
  }

  // The skip itself is added, or what was made of it at once: the robot may lack rows of it.
  Point with_skip(const Key& key, int x, int y, Point p) const {
    const int lacking = s_.skip_least[x] - key.robot;
    if (lacking > 0) p.robot = std::max(p.robot, skip_at_robot(lacking));
    const int late = s_.skip_least[y] - key.server;
    if (late > 0) {
      p.up = std::max(p.up, p.work + late * s_.source_up);
      p.server = std::max(p.server, p.work + late * s_.source_up + f_.latency);
    }
    return p;
  }

  // Rows of the side operator that were not made where they are needed are made now, or sent.
  Point with_side(const Key& key, int x, int y, const Point& p) const {
    const int e = key.computed, c = s_.skip_needed - e;
    Point q = p;
    if (y > e) {
      q.up = std::max(q.up, key.late ? 0.0 : p.robot) + (y - e) * s_.skip_up + f_.message;
      q.server = std::max(p.server, q.up + f_.latency);
    }
    if (x > c) {  // the robot makes z rows of the side, and is sent the others
      double least = kNever;
      for (int z = c; z <= x; z++) {
        double own = key.late ? 0.0 : p.robot + s_.skip_robot[z] - s_.skip_robot[c];
        if (z > c && s_.skip_least[z] > key.robot) own = std::max(own, skip_at_robot(s_.skip_least[z] - key.robot));
        if (z < x)
          own = std::max(own, first_server_ + s_.skip_server[e] + f_.latency + f_.message + (x - z) * s_.skip_down);
        least = std::min(least, own);
      }
      q.robot = std::max(p.robot, least);
    }
    return q;
  }

  // x and y rows of the result have been made; a side that makes none waits for the other's where all is linked.
  void made(const Key& key, int x, int y, Point p, Front& front) {
    p.robot += s_.robot[x];
    p.server += s_.server[y];
    const bool open_robot = s_.beside || (key.robot > 0 && !joins_);
    const bool open_server = s_.beside || (key.server > 0 && !joins_);
    if (linked_ && x == 0 && !open_robot) p.robot = std::max(p.robot, p.server + f_.message + f_.latency);
    if (joins_) p.work = kAgo;
    if (p.work <= kAgo) p.up = std::max(p.up, p.robot);
    if (linked_ && y == 0 && !open_server) p.server = std::max(p.server, p.robot);
    if (f_.bound(w_, x, y, p) >= f_.target || (tails_ && tails_->late_after(w_, x, y, p))) return;
    front.push_back(p);
    if (front.size() > kLongFront) f_.thin(front);
  }

  const Search& f_;
  const Tails* tails_;
  const Step& s_;
  const int w_, m_, n_;
  const bool opens_, joins_, linked_;
  const double first_server_;                // when the server first has anything of the open skip's source
  std::vector<char> want_;                   // [A][B]: whether some rows of the result need just these
  std::map<Key, std::vector<Front>> ready_;  // -> [A][B]
  Held after_;
};

// Earliest end of the server's work before a step at which a skip begins.
double first_at_server(const Held& held, int m) {
  double first = kNever;
  for (const auto& slice : held)
    for (int i = 0; i < m * m; i++)
      for (const Point& p : slice.second[i]) first = std::min(first, p.server);
  return first > kBeyond ? 0 : first;
}

// Least makespan; `each` is given what is held behind every step. Without tails no skip is followed.
template <class Each>
double run(const Search& search, const Tails* tails, double result_down, const Each& each) {
  const int first_rows = search.input + 1;
  Held held;
  held[{0, 0}].resize(first_rows * first_rows);
  held[{0, 0}][search.input * first_rows].push_back({0, 0, 0, kAgo});
  double first_server = 0;
  for (int w = 0; w < search.count; w++) {
    const Step& s = search.steps[w];
    if (tails && s.opens) first_server = first_at_server(held, s.argument + 1);
    held = Forward(search, tails, w, first_server).from(held);
    bool none = true;
    for (const auto& slice : held)
      for (const Front& front : slice.second) none = none && front.empty();
    if (none) return search.target;
    each(held);
  }
  const Step& last = search.steps[search.count - 1];
  const int n = last.length + 1;
  double best = search.target;
  for (const auto& slice : held)
    for (int a = 0; a < n; a++)
      for (int b = 0; b < n; b++)
        for (const Point& p : slice.second[a * n + b]) {
          const double sent = (last.length - a) * result_down;
          const double back = p.server + sent + search.message + search.latency;
          best = std::min(best, std::max(p.robot, a >= last.length ? p.server : back));
        }
  return best;
}

}  // namespace

extern "C" double least_makespan(int count, const Step* steps, int input, double latency, double message, int shares,
                                 const double* share, double target, double grid, int most, double result_down,
                                 int linked, int plainly_linked, int follow) {
  Search search{count, steps, input, latency, message, shares, share, target, grid, most, linked, plainly_linked, 0, {}, {}};
  search.look_ahead(result_down);
  std::vector<Fronts> plain;
  const double found = run(search, nullptr, result_down, [&](const Held& held) { plain.push_back(held.begin()->second); });
  if (found >= target || !follow) return found;
  const Tails tails(search, plain, result_down);
  return std::max(found, run(search, &tails, result_down, [](const Held&) {}));
}
