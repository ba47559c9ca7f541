#include "restart_loader/criu/nft_tables.h"

#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "base/unique_fd.h"
#include "restart_loader/criu/nft_replies.h"

namespace ppmr {
namespace {

constexpr size_t kReplyBytesMax = 64 << 10;
// A dump takes far less than a millisecond, so changes interrupt only a few dumps in a row.
constexpr int kDumpsMax = 20;

// Messages of netlink, one after the other.
class Messages {
 public:
  // `type`: a message of nf_tables, or the beginning or the end of a batch.
  void begin(uint16_t type, uint16_t flags, uint8_t family, uint16_t resource = 0) {
    start_ = bytes_.size();
    const nlmsghdr header{.nlmsg_len = 0,
                          .nlmsg_type = type,
                          .nlmsg_flags = static_cast<uint16_t>(flags | NLM_F_REQUEST),
                          .nlmsg_seq = 1,
                          .nlmsg_pid = 0};
    add_bytes(&header, sizeof(header));
    const nfgenmsg general{.nfgen_family = family, .version = 0, .res_id = htons(resource)};
    add_bytes(&general, sizeof(general));
  }
  void add(uint16_t type, const std::string& value) {
    const nlattr header{static_cast<uint16_t>(NLA_HDRLEN + value.size()), type};
    add_bytes(&header, sizeof(header));
    add_bytes(value.data(), value.size());
  }
  void add_text(uint16_t type, const std::string& text) { add(type, text + '\0'); }
  void end() {
    const auto length = static_cast<uint32_t>(bytes_.size() - start_);
    std::memcpy(&bytes_[start_], &length, sizeof(length));  // nlmsg_len is the first field
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void add_bytes(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
    bytes_.resize((bytes_.size() + 3) & ~size_t{3});
  }
  std::string bytes_;
  size_t start_ = 0;
};

std::string nested(uint16_t type, const std::string& content) {
  const nlattr header{static_cast<uint16_t>(NLA_HDRLEN + content.size()),
                      static_cast<uint16_t>(type | NLA_F_NESTED)};
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + content;
}

std::string plain(uint16_t type, const std::string& content) {
  const nlattr header{static_cast<uint16_t>(NLA_HDRLEN + content.size()), type};
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + content;
}

constexpr uint16_t of_tables(uint16_t type) { return (NFNL_SUBSYS_NFTABLES << 8) | type; }

using Payloads = std::vector<std::string>;

// Sends the messages, and reads replies until the kernel acknowledges, ends a dump, or refuses.
Result<NftReplies> ask_once(const Messages& messages) {
  const UniqueFd netlink(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
  if (!netlink) return system_failure("open", "a netlink socket for nftables");
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  const std::string& bytes = messages.bytes();
  if (sendto(netlink.get(), bytes.data(), bytes.size(), 0, reinterpret_cast<sockaddr*>(&kernel),
             sizeof(kernel)) < 0) {
    return system_failure("send", "a request to nftables");
  }
  std::vector<char> reply(kReplyBytesMax);
  NftReplies replies;
  while (!replies.is_complete()) {
    const ssize_t got = recv(netlink.get(), reply.data(), reply.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return system_failure("receive", "a reply of nftables", got < 0 ? errno : EIO);
    const Status added = replies.add({reply.data(), static_cast<size_t>(got)});
    if (!added) return failure(added.error());
  }
  return replies;
}

// Asks again if the tables change during the dump. Returns the kernel's messages. Errors: EBUSY if
// the tables change during each dump.
Result<Payloads> ask_kernel(const Messages& messages) {
  for (int dump = 0; dump < kDumpsMax; ++dump) {
    const auto replies = ask_once(messages);
    if (!replies) return failure(replies.error());
    if (!replies->is_interrupted()) return replies->messages();
  }
  return failure(EBUSY,
                 "the tables of nftables changed during each attempt to list them: try again");
}

// Returns the contents of the attributes of this type.
std::vector<std::string> attributes_in(const std::string& attributes, uint16_t type) {
  std::vector<std::string> found;
  for (size_t at = 0; at + NLA_HDRLEN <= attributes.size();) {
    nlattr header{};
    std::memcpy(&header, &attributes[at], sizeof(header));
    if (header.nla_len < NLA_HDRLEN || at + header.nla_len > attributes.size()) break;
    if ((header.nla_type & NLA_TYPE_MASK) == type) {
      found.push_back(attributes.substr(at + NLA_HDRLEN, header.nla_len - NLA_HDRLEN));
    }
    at += NLA_ALIGN(header.nla_len);
  }
  return found;
}

// Returns the attributes of a message of nf_tables.
std::string attributes_of(const std::string& payload) {
  return payload.substr(std::min(payload.size(), sizeof(nfgenmsg)));
}

}  // namespace

Result<std::vector<std::string>> list_nft_tables() {
  Messages messages;
  messages.begin(of_tables(NFT_MSG_GETTABLE), NLM_F_DUMP, NFPROTO_INET);
  messages.end();
  std::vector<std::string> names;
  const auto answer = ask_kernel(messages);
  if (!answer) {
    const int why = answer.error().errno_value;
    if (why == EPROTONOSUPPORT || why == EOPNOTSUPP || why == EINVAL) return names;
    return failure(why, "list the tables of nftables: " + answer.error().message);
  }
  for (const std::string& payload : *answer) {
    for (const std::string& name : attributes_in(attributes_of(payload), NFTA_TABLE_NAME)) {
      names.emplace_back(name.c_str());  // without the final zero byte
    }
  }
  return names;
}

bool nft_set_has(const std::string& table, const std::string& set, const std::string& key) {
  Messages messages;
  messages.begin(of_tables(NFT_MSG_GETSETELEM), NLM_F_ACK, NFPROTO_INET);
  messages.add_text(NFTA_SET_ELEM_LIST_TABLE, table);
  messages.add_text(NFTA_SET_ELEM_LIST_SET, set);
  const std::string element = nested(NFTA_SET_ELEM_KEY, plain(NFTA_DATA_VALUE, key));
  messages.add(NFTA_SET_ELEM_LIST_ELEMENTS | NLA_F_NESTED, nested(NFTA_LIST_ELEM, element));
  messages.end();
  return ask_kernel(messages).has_value();
}

Result<std::vector<std::string>> list_nft_set(const std::string& table, const std::string& set) {
  Messages messages;
  messages.begin(of_tables(NFT_MSG_GETSETELEM), NLM_F_DUMP, NFPROTO_INET);
  messages.add_text(NFTA_SET_ELEM_LIST_TABLE, table);
  messages.add_text(NFTA_SET_ELEM_LIST_SET, set);
  messages.end();
  std::vector<std::string> keys;
  const auto answer = ask_kernel(messages);
  if (!answer) {
    if (answer.error().errno_value == ENOENT) return keys;
    return failure(answer.error().errno_value, "list the set " + set + " of the table " + table +
                                                   " of nftables: " + answer.error().message);
  }
  for (const std::string& payload : *answer) {
    for (const auto& list : attributes_in(attributes_of(payload), NFTA_SET_ELEM_LIST_ELEMENTS)) {
      for (const auto& element : attributes_in(list, NFTA_LIST_ELEM)) {
        for (const auto& key : attributes_in(element, NFTA_SET_ELEM_KEY)) {
          for (auto& value : attributes_in(key, NFTA_DATA_VALUE)) keys.push_back(std::move(value));
        }
      }
    }
  }
  return keys;
}

Status remove_nft_table(const std::string& table) {
  Messages messages;
  messages.begin(NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
  messages.end();
  messages.begin(of_tables(NFT_MSG_DELTABLE), NLM_F_ACK, NFPROTO_INET);
  messages.add_text(NFTA_TABLE_NAME, table);
  messages.end();
  messages.begin(NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
  messages.end();
  const auto removed = ask_kernel(messages);
  return removed ? Status{}
                 : failure(removed.error().errno_value,
                           "remove the table " + table + ": " + removed.error().message);
}

}  // namespace ppmr
